"""What both quick_start programs share: a short text and its sentiment become word numbers and 0 or 1."""

import re

import numpy as np

from launcher.worker.interface import Ids, Job, Real, bucket

COLUMNS = ("sentiment", "text")
BLANK = {"sentiment": "positive"}  # any that parses: a text to predict has none
SENTIMENTS = {"negative": 0.0, "positive": 1.0, "0": 0.0, "1": 1.0}
SKIPPED = {"neutral"}  # two classes are told apart; the corpus has a third that is in between
WORD = re.compile(r"[#@]?\w+(?:'\w+)?")


def inputs(job: Job) -> dict:
    return {"words": Ids(job.options["words"], cut=True), "label": Real()}


def parse(row: dict, job: Job) -> dict | None:
    sentiment = row["sentiment"].strip().lower()
    if sentiment in SKIPPED:
        return None
    if sentiment not in SENTIMENTS:
        known = ", ".join([*SENTIMENTS, *SKIPPED])
        raise ValueError(f"column sentiment is {row['sentiment']!r}, but must be one of {known}")
    words = [bucket(word, job.options["buckets"]) for word in WORD.findall(row["text"].lower())]
    return {"words": words, "label": SENTIMENTS[sentiment]}


def check_labels(labels: np.ndarray) -> None:
    """A classifier that sees one class only learns nothing, and its error would look perfect."""
    if labels.min() == labels.max():
        name = next(word for word, value in SENTIMENTS.items() if value == labels[0, 0])
        raise ValueError(
            f"column sentiment: all {len(labels)} rows are {name}, but two classes are needed to learn from. "
            "See whether data.columns names the right columns and the source has both classes"
        )


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """error: the share of texts on the wrong side of one half."""
    return {"error": float(np.mean((prediction > 0.5) != (label > 0.5)))}


def describe(prediction: np.ndarray) -> str:
    chance = float(prediction[0])
    return (
        f"positive with a chance of {chance:.1%}"
        if chance > 0.5
        else f"negative with a chance of {1 - chance:.1%}"
    )
