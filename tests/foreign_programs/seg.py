"""A small U-Net for images of squares that trains with PaddleSeg, as its tools/train.py does; it knows no launcher."""

import argparse
import glob
import os

import cv2
import numpy as np
import paddle
from paddleseg.core import train
from paddleseg.datasets import Dataset
from paddleseg.models import UNet
from paddleseg.models.losses import CrossEntropyLoss
from paddleseg.transforms import Normalize

SIZE = 32


def write_images(folder, count):
    """Write images with a bright square each, and their labels; return the path of the list of them."""
    random = np.random.RandomState(1)
    os.makedirs(folder, exist_ok=True)
    lines = []
    for number in range(count):
        label = np.zeros((SIZE, SIZE), "uint8")
        left, top = random.randint(0, SIZE // 2, 2)
        label[top : top + SIZE // 2, left : left + SIZE // 2] = 1
        image = np.stack([label * 150 + random.randint(0, 50, label.shape)] * 3, axis=-1)
        cv2.imwrite(f"{folder}/{number}.png", image)
        cv2.imwrite(f"{folder}/{number}-label.png", label)
        lines.append(f"{number}.png {number}-label.png")
    with open(f"{folder}/train.txt", "w") as file:
        file.write("\n".join(lines))
    return f"{folder}/train.txt"


parser = argparse.ArgumentParser()
parser.add_argument("--save_dir", default="output")
parser.add_argument("--iters", type=int, default=60)
arguments = parser.parse_args()

data = "squares" + os.environ.get("PADDLE_TRAINER_ID", "")
train_path = write_images(data, 16)
dataset = Dataset(
    transforms=[Normalize()],
    dataset_root=data,
    num_classes=2,
    mode="train",
    train_path=train_path,
)
model = UNet(num_classes=2)
saved = glob.glob(f"{arguments.save_dir}/iter_*/model.pdopt")
newest = max(filter(os.path.getsize, saved), key=os.path.getmtime, default="")
train(
    model,
    dataset,
    optimizer=paddle.optimizer.Momentum(0.01, parameters=model.parameters()),
    save_dir=arguments.save_dir,
    iters=arguments.iters,
    batch_size=2,
    resume_model=os.path.dirname(newest) or None,
    save_interval=20,
    log_iters=2,
    losses={"types": [CrossEntropyLoss()], "coef": [1]},
    keep_checkpoint_max=3,
)
