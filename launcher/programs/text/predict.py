"""Predict the sentiment of texts with a model that train.py saved: `python predict.py FOLDER TEXT …`."""

import sys

import paddle

folder, *texts = sys.argv[1:]
sys.path.insert(0, folder)  # words.py as it was when the model was trained
from words import CLASSES, encode  # noqa: E402

scores = paddle.jit.load(f"{folder}/model")(paddle.to_tensor(encode(texts)))
for text, chances in zip(texts, paddle.nn.functional.softmax(scores).numpy(), strict=True):
    print(f"{CLASSES[chances.argmax()]} with a chance of {chances.max():.1%}: {text}")
