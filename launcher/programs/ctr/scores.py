"""How good predicted chances of a click are."""

import numpy as np

CLIPPED = 1e-7  # a chance of 0 or 1 would cost infinitely much when it is wrong


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """auc, log_loss, and calibration: predicted clicks by true ones. Of any shapes with as many numbers."""
    chance = prediction.reshape(-1).astype(np.float64)
    clicked = label.reshape(-1) > 0.5
    sure = np.clip(chance, CLIPPED, 1 - CLIPPED)
    return {
        "auc": auc(chance, clicked),
        "log_loss": float(-np.mean(np.where(clicked, np.log(sure), np.log1p(-sure)))),
        "calibration": float(np.mean(chance) / np.mean(clicked)),
    }


def auc(score: np.ndarray, clicked: np.ndarray) -> float:
    """How often a clicked row is scored above another one (the area under the ROC curve); a tie is half."""
    _, place, times = np.unique(score, return_inverse=True, return_counts=True)
    rank = np.cumsum(times) - (times - 1) / 2
    yes, no = int(clicked.sum()), int((~clicked).sum())
    return float((rank[place][clicked].sum() - yes * (yes + 1) / 2) / (yes * no))
