"""What this package reports as an error; each message is whole, and says what to do.

ServedError
├── ModelError   the folder holds no model that this package can read, or its program failed
└── RowError     a row to predict is wrong
"""

from __future__ import annotations


class ServedError(Exception):
    """The root. `str(error)` is what a person reads."""


class ModelError(ServedError):
    """The model cannot be used."""


class RowError(ServedError):
    """A row cannot be predicted; the message names the row (counted from 1) and the column."""
