"""Calculate scores of predicted click probabilities."""

import numpy as np

CLIPPED = 1e-7  # the log loss of a wrong probability of 0 or 1 is infinite


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Return `auc`, `log_loss` and `calibration` (predicted clicks divided by true clicks).

    Args:
        prediction: probability of a click for each row, [rows, 1] or [rows].
        label: 1 for a click, 0 otherwise, for each row.
    """
    probability = prediction.reshape(-1).astype(np.float64)
    clicked = label.reshape(-1) > 0.5
    clipped = np.clip(probability, CLIPPED, 1 - CLIPPED)
    return {
        "auc": auc(probability, clicked),
        "log_loss": float(-np.mean(np.where(clicked, np.log(clipped), np.log1p(-clipped)))),
        "calibration": float(np.mean(probability) / np.mean(clicked)),
    }


def auc(score: np.ndarray, clicked: np.ndarray) -> float:
    """Return the area under the ROC curve.

    To calculate it, compare each clicked row with each row that was not clicked. The area is the share of these pairs
    in which the clicked row has the higher score; a pair with equal scores counts half.
    """
    _, place, times = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(times) - (times - 1) / 2
    yes, no = int(clicked.sum()), int((~clicked).sum())
    return float((rank[place][clicked].sum() - yes * (yes + 1) / 2) / (yes * no))
