"""A classifier of token ids that trains with PaddleNLP's Trainer, as its examples do; it knows no launcher."""

import os

import numpy as np
import paddle
from paddle.io import Dataset
from paddlenlp.trainer import PdArgumentParser, Trainer, TrainingArguments, get_last_checkpoint
from paddlenlp.transformers import BertConfig, BertForSequenceClassification


class Tokens(Dataset):
    def __init__(self, size):
        random = np.random.RandomState(1)
        self.rows = random.randint(1, 50, (size, 16))
        self.labels = (self.rows.mean(1) > 25).astype("int64")

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.labels[index]}

    def __len__(self):
        return len(self.rows)


(arguments,) = PdArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    num_labels=2,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    criterion=paddle.nn.CrossEntropyLoss(),
    args=arguments,
    train_dataset=Tokens(128),
    eval_dataset=Tokens(32),
)
last = get_last_checkpoint(arguments.output_dir) if os.path.isdir(arguments.output_dir) else None
trainer.train(resume_from_checkpoint=last)
trainer.save_model()
