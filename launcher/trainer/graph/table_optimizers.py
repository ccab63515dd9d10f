"""Describe the optimizers of embedding tables to Paddle's servers, and the optimizer state of a saved row.

Paddle 2.6.2 gives every table Adam (an `elif` is missing in the_one_ps.py), clips weights at 10, and takes
betas only from the program's optimizer. So this module replaces the servers' whole description of a table's
optimizer.

- adam: SparseAdamSGDRule, which is Paddle's Adam operator with a step count for each row.
- sgd: SparseNaiveSGDRule, w -= rate x gradient.
- adagrad: StdAdaGradSGDRule, for each element w -= rate x g / sqrt(initial + G), then G += g². So a gradient
  changes G from the next step on. g is the mean over the id's occurrences in one push.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NAMES = {"adam": "SparseAdamSGDRule", "sgd": "SparseNaiveSGDRule", "adagrad": "StdAdaGradSGDRule"}


@dataclass(frozen=True)
class OptimizerRule:
    """Holds the kind of an optimizer (adam, sgd or adagrad) and its numbers, such as the learning rate."""

    kind: str
    """adam, sgd or adagrad."""
    rate: float
    beta1: float = 0.0
    beta2: float = 0.0
    epsilon: float = 0.0
    initial: float = 0.0
    """Initial value of adagrad's accumulators."""

    @classmethod
    def of(cls, optimizer: Any) -> OptimizerRule:
        """Return the rule that does on the servers what Paddle's `optimizer` does in a trainer.

        Raises:
            ValueError: the servers do not have this optimizer.
            TypeError: the learning rate is not a number.
        """
        kind = type(optimizer).__name__.lower()
        if kind not in NAMES:
            raise ValueError(
                f"a table cannot be trained with {type(optimizer).__name__}: Paddle's servers have only "
                "paddle.optimizer.Adam, SGD and Adagrad for tables. Fix: use one of them"
            )
        rate = optimizer._learning_rate
        if not isinstance(rate, int | float):
            raise TypeError(
                f"the learning rate is a {type(rate).__name__}, but Paddle's servers use one number for the "
                "whole run. Fix: use a number"
            )
        if kind == "adam":
            return cls(kind, rate, optimizer._beta1, optimizer._beta2, optimizer._epsilon)
        if kind == "sgd":
            return cls(kind, rate)
        initial = optimizer.initial_accumulator_value
        if initial <= 0:
            raise ValueError(
                f"Adagrad has initial_accumulator_value={initial}, but must have one above 0, since the "
                "first step is divided by its root. Fix: set it to 0.1"
            )
        return cls(kind, rate, initial=initial)

    def fresh(self, width: int) -> list[str]:
        """Return the optimizer state of `width` values before their first step, as the texts in a table's file."""
        if self.kind != "adam":
            return ["0"] * state_size(self.kind, width)
        return [*["0"] * (2 * width), f"{self.beta1:.9g}", f"{self.beta2:.9g}"]

    def describe(self, description: Any, spread: float) -> None:
        """Write this rule into Paddle's description of a table.

        A table has two such descriptions: for the first value of its rows, and for all other values. New values
        are uniform from -spread to +spread.
        """
        description.Clear()
        description.name = NAMES[self.kind]
        # weight_bounds stays empty, so nothing is clipped.
        values: Any = getattr(description, "naive" if self.kind == "sgd" else self.kind)
        values.learning_rate = self.rate
        values.initial_range = spread
        if self.kind == "adam":
            values.beta1_decay_rate, values.beta2_decay_rate = self.beta1, self.beta2
            values.ada_epsilon = self.epsilon
        if self.kind == "adagrad":
            values.initial_g2sum = self.initial
            values.learning_rate = self.rate / self.initial**0.5  # the rule multiplies by that root


def state_size(kind: str, width: int) -> int:
    """Return how many numbers of optimizer state follow the `width` values of a saved embedding row."""
    return {"adam": 2 * width + 2, "sgd": 0, "adagrad": width}[kind]
