"""What a table's optimizer does to a row on Paddle's servers, and where a saved row keeps its state.

Paddle 2.6.2 gives every table Adam (an `elif` is missing in the_one_ps.py), clips weights at 10, and takes
betas only from the network's own optimizer. So the servers' description of a table is set here, whole.

adam     SparseAdamSGDRule: Adam as Paddle's own operator has it, with a step count of its own for each row.
sgd      SparseNaiveSGDRule: w -= rate x gradient.
adagrad  StdAdaGradSGDRule, element by element: w -= rate x g / sqrt(initial + G), and then G += g². So a
         gradient counts from the next step on. g is the mean over the id's appearances in one push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMES = {"adam": "SparseAdamSGDRule", "sgd": "SparseNaiveSGDRule", "adagrad": "StdAdaGradSGDRule"}


@dataclass(frozen=True)
class Rule:
    """An optimizer as numbers."""

    kind: str
    """adam, sgd or adagrad."""
    rate: float
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    initial: float = 0.0
    """What the accumulators of adagrad begin with."""

    @classmethod
    def of(cls, optimizer: Any) -> Rule:
        """Raises `ValueError`, `TypeError` for an optimizer that the servers do not have."""
        kind = type(optimizer).__name__.lower()
        if kind not in NAMES:
            raise ValueError(
                f"a table cannot be trained with {type(optimizer).__name__}: Paddle's servers have "
                "paddle.optimizer.Adam, SGD and Adagrad for tables. Take one of them"
            )
        rate = optimizer._learning_rate
        if not isinstance(rate, int | float):
            raise TypeError(
                f"the learning rate is a {type(rate).__name__}, but Paddle's servers keep one number for the "
                "whole run. Give a number"
            )
        if kind == "adam":
            return cls(kind, rate, optimizer._beta1, optimizer._beta2, optimizer._epsilon)
        if kind == "sgd":
            return cls(kind, rate)
        initial = optimizer.initial_accumulator_value
        if initial <= 0:
            raise ValueError(
                f"Adagrad has initial_accumulator_value={initial}, but it must be above 0: a first step is "
                "divided by its root. Give such as 0.1"
            )
        return cls(kind, rate, initial=initial)

    def fresh(self, width: int) -> list[str]:
        """The state of so many values that never stepped, as a save has it."""
        if self.kind != "adam":
            return ["0"] * state(self.kind, width)
        return [*["0"] * (2 * width), f"{self.beta1:.9g}", f"{self.beta2:.9g}"]

    def describe(self, description: Any, spread: float) -> None:
        """Puts it into one of the two SparseCommonSGDRuleParameter of a table (w[0], and w[1:])."""
        description.Clear()
        description.name = NAMES[self.kind]
        # No weight_bounds: without them nothing is clipped.
        values: Any = getattr(description, "naive" if self.kind == "sgd" else self.kind)
        values.learning_rate = self.rate
        values.initial_range = spread
        if self.kind == "adam":
            values.beta1_decay_rate, values.beta2_decay_rate = self.beta1, self.beta2
            values.ada_epsilon = self.epsilon
        if self.kind == "adagrad":
            values.initial_g2sum = self.initial
            values.learning_rate = self.rate / self.initial**0.5  # the rule multiplies by that root


def state(kind: str, width: int) -> int:
    """Numbers of state that a saved row has behind so many values."""
    return {"adam": 2 * width + 2, "sgd": 0, "adagrad": width}[kind]
