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

DEFAULTS = {"adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, "adagrad": {"epsilon": 1e-6}, "sgd": {}}
"""Arguments that the servers ignore: those of dense parameters' optimizers, and Adagrad's. They use these values."""
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
    def of(cls, optimizer: Any, table: str = "") -> OptimizerRule:
        """Return the rule that does on the servers what Paddle's `optimizer` does in a trainer.

        Args:
            table: the name of the table whose optimizer it is; "" for the program's, which trains dense parameters.

        Raises:
            ValueError: the servers do not have this optimizer, or ignore one of its arguments.
            TypeError: the learning rate is not a number.
        """
        import paddle

        what = f"embedding {table!r}" if table else "the network"
        kind, kinds = type(optimizer).__name__, ("Adam", "SGD", *(["Adagrad"] if table else []))
        if type(optimizer) not in [getattr(paddle.optimizer, name) for name in kinds]:
            raise ValueError(
                f"{what} cannot be trained with {kind}: Paddle's servers have only {', '.join(kinds)} for "
                f"{'tables' if table else 'dense parameters'}. Fix: use one of paddle.optimizer"
            )
        kind = kind.lower()
        ignored = {
            "grad_clip": (optimizer._grad_clip is not None, "remove it"),
            "weight_decay": (coefficient(optimizer.regularization), "add the penalty to the loss instead"),
            "parameters": (
                optimizer._parameter_list is not None,
                "remove it; trainable=False in a ParamAttr keeps a parameter as it is",
            ),
            "use_multi_tensor": (optimizer._use_multi_tensor, "remove it"),
        }
        if not table or kind == "adagrad":
            fix = "remove it" if table else "remove it; a table may have it: job.embedding(…, optimizer=…)"
            for key, default in DEFAULTS[kind].items():
                ignored[key] = (getattr(optimizer, f"_{key}") != default, fix)
        for key, (given, fix) in ignored.items():
            if given:
                raise ValueError(
                    f"the {type(optimizer).__name__} of {what} has {key}, which Paddle's servers ignore. Fix: {fix}"
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


def coefficient(regularizer: Any) -> float:
    """Return the factor of a regularizer of Paddle; 0 for None."""
    return 0.0 if regularizer is None else float(getattr(regularizer, "_coeff", 1.0))


def state_size(kind: str, width: int) -> int:
    """Return how many numbers of optimizer state follow the `width` values of a saved embedding row."""
    return {"adam": 2 * width + 2, "sgd": 0, "adagrad": width}[kind]
