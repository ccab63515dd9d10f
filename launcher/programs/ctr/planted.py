"""Rows in Criteo's shape whose clicks come from a known model, so that the best possible scores are known.

    python -m launcher.programs.ctr.planted make FILE --rows 1000000 --day 0
    python -m launcher.programs.ctr.planted limit FILE

The chance of a click is a function of the row alone, its categories and counts: `limit` reads the rows of any
such file (a test set that was held out) and says what the planted model itself scores on them. Nothing that
learns from the rows can do better but by luck.

How hard this is was chosen so that DeepFM comes within 0.005 of the limit's AUC with a million rows. It says
nothing about how hard real rows are, and most of it a logistic regression learns as well.

A column's values are drawn by a power law; the frequent ones have the largest effects, and a few pairs of
columns have effects together, columns whose frequent values meet often. A value lives for four days: every
day a quarter of them is replaced by values that nobody has seen, so that a model of yesterday is worse today.
All is made by hashing the seed, the day and the row's number: the same rows come on every machine, and any
part of them by itself.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

SIZES = (1000, 500, 10_000, 5000, 300, 20, 2000, 600, 3, 3000, 1000, 8000, 1000)
SIZES += (25, 2000, 4000, 10, 1000, 800, 4, 6000, 18, 15, 3000, 100, 2000)
"""Values of each category column that are in use on one day."""
COUNTS = 13
POWER = 1.1  # the value of rank r comes about r**-POWER as often as the first one
LIFE = 4  # days of a value
EFFECT, FREQUENT = 0.6, 5  # standard deviation of the first value's effect; the rank that has half of it
PAIRS, TOGETHER = ((4, 8), (5, 22), (13, 16), (19, 24)), 0.25
SLOPES = np.linspace(-0.2, 0.2, COUNTS)
BASE = -1.6
EMPTY = 0.05  # of the counts, and of the categories with more than FEW values
FEW = 1000
CHUNK = 100_000
# What the hash of a row decides, each from its number on, and what that of a value does.
VALUE, NO_VALUE, COUNT, NO_COUNT, CLICK = 0, 100, 200, 300, 400
WEIGHT, SIGN = 500, 600

# A value's number (its rank and generation) and its 8 hexadecimal digits are each other's scrambling.
ODD, BACK = np.uint64(0x9E3779B1), np.uint64(pow(0x9E3779B1, -1, 1 << 32))
LOW = np.uint64(0xFFFFFFFF)


def mix(numbers: np.ndarray) -> np.ndarray:
    """64 bits that look like chance, for each 64-bit number (splitmix64's last step)."""
    x = np.asarray(numbers, np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def chance(keys: np.ndarray, what: int) -> np.ndarray:
    """Numbers in 0..1 that `keys` and `what` decide."""
    return (mix(mix(keys) + mix([what + 1])) >> np.uint64(11)) * 2.0**-53


def bell(keys: np.ndarray, what: int) -> np.ndarray:
    """Numbers around 0 with standard deviation 1: what two dice show."""
    return (chance(keys, what) + chance(keys, what + 1) - 1) * np.sqrt(6)


def salt(column: int) -> np.ndarray:
    """What makes the same value another one in another column."""
    return mix([column + 1]) & LOW


def categories(rows: np.ndarray, column: int, day: int) -> np.ndarray:
    """Each row's value of a column as its 32-bit number; -1 for empty."""
    size = SIZES[column]
    most = (size + 1) ** (1 - POWER) - 1
    rank = (most * chance(rows, VALUE + column) + 1) ** (1 / (1 - POWER)) - 1
    rank = np.minimum(rank.astype(np.uint64), np.uint64(size - 1))
    age = np.uint64(day) + mix(rank + np.uint64(1 + column << 32)) % np.uint64(
        LIFE
    )  # a quarter was born today
    number = rank + np.uint64(size) * (age // np.uint64(LIFE))
    digits = (number * ODD & LOW ^ salt(column)).astype(np.int64)
    if size <= FEW:
        return digits
    return np.where(chance(rows, NO_VALUE + column) < EMPTY, -1, digits)


def counts(rows: np.ndarray, column: int) -> np.ndarray:
    """Each row's count of a column; -1 for empty."""
    found = np.floor(np.exp(1.5 * bell(rows, COUNT + 2 * column) + column % 5))
    return np.where(chance(rows, NO_COUNT + column) < EMPTY, -1, found).astype(np.int64)


def probability(ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The planted model. `ids`: [rows, 26] and `numbers`: [rows, 13], both with -1 for empty."""
    score = BASE + np.log1p(np.maximum(numbers, 0)) @ SLOPES
    signs = {}
    for column, size in enumerate(SIZES):
        known = ids[:, column] >= 0
        digits = np.maximum(ids[:, column], 0).astype(np.uint64)
        rank = ((digits ^ salt(column)) * BACK & LOW) % np.uint64(size)
        key = digits + np.uint64(1 + column << 32)
        share = known / (1 + rank.astype(np.float64) / FREQUENT)
        score += EFFECT * share * bell(key, WEIGHT)
        signs[column] = np.sqrt(share) * np.sign(chance(key, SIGN) - 0.5)
    for one, other in PAIRS:
        score += TOGETHER * signs[one] * signs[other]
    return 1 / (1 + np.exp(-score))


def rows(first: int, count: int, day: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clicks [count], ids [count, 26] and counts [count, 13] of the rows from `first` on, of one day."""
    keys = np.arange(first, first + count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(48))
    keys += np.uint64(day) << np.uint64(36)
    ids = np.stack([categories(keys, column, day) for column in range(len(SIZES))], axis=1)
    numbers = np.stack([counts(keys, column) for column in range(COUNTS)], axis=1)
    return chance(keys, CLICK) < probability(ids, numbers), ids, numbers


def text(clicks: np.ndarray, ids: np.ndarray, numbers: np.ndarray) -> str:
    """The rows as lines of Criteo's files."""
    columns = [np.where(clicks, "1", "0").tolist()]
    for numbers_of_one, form in ((numbers, "{}"), (ids, "{:08x}")):
        for column in numbers_of_one.T:
            values, place = np.unique(column, return_inverse=True)
            words = ["" if value < 0 else form.format(value) for value in values.tolist()]
            columns.append([words[i] for i in place.tolist()])
    return "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def make(file: Path, count: int, day: int = 0, seed: int = 0) -> None:
    """Writes `count` rows of a day; the file has its name once it is whole."""
    draft = file.with_name(f".{file.name}.tmp")
    with draft.open("w", encoding="ascii", newline="\n") as out:
        for first in range(0, count, CHUNK):
            out.write(text(*rows(first, min(CHUNK, count - first), day, seed)))
    draft.replace(file)


def read(file: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Clicks, ids and counts of a file, some rows at a time."""
    with file.open(encoding="ascii") as lines:
        while part := [line.rstrip("\n").split("\t") for _, line in zip(range(CHUNK), lines, strict=False)]:
            clicks = np.array([row[0] == "1" for row in part])
            numbers = np.array([[int(word or -1) for word in row[1 : COUNTS + 1]] for row in part])
            ids = np.array([[int(word or "-1", 16) for word in row[COUNTS + 1 :]] for row in part])
            yield clicks, ids, numbers


def limit(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """The planted model's own predictions for the rows of a file, and their clicks: [rows, 1] each."""
    clicks, chances = [], []
    for clicked, ids, numbers in read(file):
        clicks.append(clicked)
        chances.append(probability(ids, numbers))
    return np.concatenate(chances)[:, None], np.concatenate(clicks)[:, None].astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line in the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m launcher.programs.ctr.planted", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write a file of rows")
    making.add_argument("--rows", type=int, default=1_000_000)
    making.add_argument("--day", type=int, default=0)
    making.add_argument("--seed", type=int, default=0)
    for command in (making, commands.add_parser("limit", help="the best possible scores of a file's rows")):
        command.add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "make":
        make(given.file, given.rows, given.day, given.seed)
        return 0
    from launcher.programs.ctr.scores import metrics

    sys.stdout.write(json.dumps(metrics(*limit(given.file))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
