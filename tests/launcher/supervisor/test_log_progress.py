"""Progress in the logs of programs that do not report it: lines as the programs print them."""

from pathlib import Path

import pytest

from launcher.supervisor.log_progress import TAIL_BYTES, find_log_progress, read_log_progress


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # PaddleClas d178931fc, with its other numbers
        (
            "[2026/11/26 17:36:50] ppcls INFO: [Train][Epoch 2/3][Iter: 8/9]lr(LinearWarmup): 0.01250000, top1: 0.33, "
            "CELoss: 1.20310, loss: 1.20310, batch_cost: 0.16335s, reader_cost: 0.00009, ips: 48.97 samples/s",
            "epoch 2/3, step 8/9, loss 1.20310",
        ),
        # PaddleSeg d7975e7c
        (
            "2026-11-26 [INFO] [TRAIN] epoch: 4, iter: 20/30, loss: 0.4013, lr: 0.004, batch_cost: 1.2, ETA 00:00:12",
            "epoch 4, step 20/30, loss 0.4013",
        ),
        # PaddleNLP 2.8.1, Trainer
        (
            "[INFO] - loss: 0.69352117, learning_rate: 0.0, global_step: 20, interval_steps_per_second: 270.6, "
            "progress_or_epoch: 1.25",
            "step 20, loss 0.69352117",
        ),
        # PaddleNLP's examples
        ("global step 40, epoch: 1, batch: 40, loss: 0.51, speed: 3.1 step/s", "epoch 1, step 40, loss 0.51"),
        # paddle.Model.fit of PaddlePaddle 3.3.1
        (
            "Epoch 3/8\nstep 32/64 - loss: 0.0288 - acc: 0.9727 - 7ms/step",
            "epoch 3/8, step 32/64, loss 0.0288",
        ),
        # PaddleDetection and PaddleOCR
        (
            "[11/27 11:12:29] ppdet.engine INFO: Epoch: [2] [ 20/100] learning_rate: 0.0003 loss_xy: 0.55 loss: 8.68 "
            "eta: 0:01:22 batch_cost: 0.1",
            "epoch 2, step 20/100, loss 8.68",
        ),
        (
            "ppocr INFO: epoch: [1/500], global_step: 1,200, lr: 0.1, loss: 37.2",
            "epoch 1/500, step 1,200, loss 37.2",
        ),
        # the examples of Paddle's documentation
        ("epoch: 0, batch_id: 100, loss is: [2.3], acc is: [0.1]", "epoch 0, step 100, loss 2.3"),
        ("\x1b[1mepoch\x1b[0m: \x1b[31m3\x1b[0m/10 loss=\x1b[31m0.4\x1b[0m", "epoch 3/10, loss 0.4"),
        ("训练epoch：3，step：20，损失loss：0.25", "epoch 3, step 20, loss 0.25"),  # noqa: RUF001
        ("epoch 3 train_loss=0.5 val_loss 0.6 eval_loss: 0.7", "epoch 3, loss 0.5"),
        ("Epoch [3/10], Step [40/500], Loss: nan", "epoch 3/10, step 40/500, loss nan"),
        ("  5%|▌    | 5/100\r 37%|███▋      | 37/100 [00:10<00:20,  3.1it/s]", "step 37/100"),
        ("{'loss': 1.5e-3, 'epoch': 2.0}", "epoch 2, loss 1.5e-3"),
        ("batch_size: 4\nnum_epochs 3 stepwise lossless\nips: 3", ""),
        ("", ""),
    ],
)
def test_the_newest_progress_is_found(text: str, expected: str) -> None:
    assert find_log_progress(text) == expected


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert read_log_progress(log) == ""
    log.write_bytes(b"epoch 1/9\n" + b"x" * TAIL_BYTES + b"\nstep 3/4\n\xff")
    assert read_log_progress(log) == "step 3/4"
