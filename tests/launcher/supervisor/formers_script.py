"""A classifier of token ids that trains with PaddleFormers' Trainer, with the launcher's callback."""

import time

import numpy as np
import paddle
from paddle.io import Dataset
from paddleformers.trainer import Trainer, TrainingArguments

from launcher.program import ScriptRun, TrainerCallback


class Tokens(Dataset):
    """Rows of token ids; the label says whether their mean is large."""

    def __init__(self, size):
        self.rows = np.random.RandomState(1).randint(1, 50, (size, 16))
        self.labels = (self.rows.mean(1) > 25).astype("int64")

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.labels[index]}

    def __len__(self):
        return len(self.rows)


class Network(paddle.nn.Layer):
    """An embedding and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = paddle.nn.Embedding(50, 16), paddle.nn.Linear(16, 2)

    def forward(self, input_ids, labels=None):
        """Return the logits."""
        time.sleep(0.02)
        return self.linear(self.embedding(input_ids).mean(1))


run = ScriptRun()
paddle.seed(7)
callback = TrainerCallback(run, every=3)
arguments = TrainingArguments(
    output_dir=str(run.output / "plain"),
    num_train_epochs=run.epochs,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=8,
    learning_rate=0.01,
    evaluation_strategy="epoch",
    device="cpu",
    report_to=[],
    amp_master_grad=False,
    sharding="",
    save_checkpoint_format="",
    load_checkpoint_format="",
)
trainer = Trainer(
    model=Network(),
    criterion=paddle.nn.CrossEntropyLoss(),
    args=arguments,
    train_dataset=Tokens(128),
    eval_dataset=Tokens(32),
    callbacks=[callback],
    compute_metrics=lambda found: {
        "accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())
    },
)
trainer.train(resume_from_checkpoint=str(callback.resume_from) if callback.resume_from else None)
if run.rank == 0:
    with run.save_model() as folder:
        np.savez(
            folder / "end.npz", **{name: value.numpy() for name, value in trainer.model.state_dict().items()}
        )
