"""Turn a short text into word ids and its sentiment into a label: inputs and parser of both quick_start programs."""

import re

import numpy as np

from launcher.program import Ids, Job, Real, bucket

COLUMNS = ("sentiment", "text")
BLANK = {"sentiment": "positive"}  # stands for the unknown sentiment of a text to predict
SENTIMENTS = {"negative": 0.0, "positive": 1.0, "0": 0.0, "1": 1.0}
SKIPPED = {"neutral"}  # a third class of the corpus, between the two classes that the programs learn
WORD = re.compile(r"[#@]?\w+(?:'\w+)?")


def inputs(job: Job) -> dict:
    """Return the inputs: up to `--words` word ids, and the label 0 or 1."""
    return {"words": Ids(job.options["words"], cut=True), "label": Real()}


def parse(row: dict, job: Job) -> dict | None:
    """Convert one row (column → text) to the network's inputs; return None to skip a neutral text.

    Raise ValueError for an unknown sentiment.
    """
    sentiment = row["sentiment"].strip().lower()
    if sentiment in SKIPPED:
        return None
    if sentiment not in SENTIMENTS:
        known = ", ".join([*SENTIMENTS, *SKIPPED])
        raise ValueError(f"column sentiment is {row['sentiment']!r}, but must be one of {known}")
    words = [bucket(word, job.options["buckets"]) for word in WORD.findall(row["text"].lower())]
    return {"words": words, "label": SENTIMENTS[sentiment]}


def check_labels(labels: np.ndarray) -> None:
    """Raise ValueError if all texts have the same class: a model would learn nothing, and its error would be 0."""
    if labels.min() == labels.max():
        name = next(word for word, value in SENTIMENTS.items() if value == labels[0, 0])
        raise ValueError(
            f"column sentiment: all {len(labels)} rows are {name}, but both classes are needed. Fix: check "
            "that data.columns selects the right columns and that the source has both classes"
        )


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Return `error`: the share of texts whose predicted class is wrong."""
    return {"error": float(np.mean((prediction > 0.5) != (label > 0.5)))}


def describe(prediction: np.ndarray) -> str:
    """Return the text of one row's prediction, such as `positive with a chance of 93.1%`."""
    probability = float(prediction[0])
    if probability > 0.5:
        return f"positive with a chance of {probability:.1%}"
    return f"negative with a chance of {1 - probability:.1%}"
