"""The exceptions of this package. Each message says what is wrong and how to fix it.

ServedError
├── ModelError   the folder has no model that this package can read, or the model's program failed
└── RowError     a row to predict is invalid
"""

from __future__ import annotations


class ServedError(Exception):
    """Base class. `str(error)` is the message for users."""


class ModelError(ServedError):
    """The model cannot be used."""


class RowError(ServedError):
    """A row cannot be predicted; the message contains the row's number (from 1) and the column."""
