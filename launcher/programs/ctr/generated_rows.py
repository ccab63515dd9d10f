"""Generate rows in Criteo's format. A known model decides the clicks, so the best possible scores are known.

    python -m launcher.programs.ctr.generated_rows make FILE --rows 1000000 --day 0
    python -m launcher.programs.ctr.generated_rows limit FILE

The probability of a click depends only on the row's categories and counts. `limit` reads the rows of such a
file (for example a held-out test set) and prints the scores of the known model itself. A trained model can
exceed these scores only by luck.

The difficulty of the rows was chosen so that the AUC of DeepFM comes within 0.005 of the AUC of `limit` after
a million rows. Real rows may be more or less difficult. A logistic regression also comes close to these scores.

The values of a column follow a power law. Frequent values have the largest effects, and a few pairs of
columns have a joint effect. A value exists for four days: every day a quarter of all values is replaced by
new ones, so yesterday's model is worse today. All numbers are hashes of seed, day and row number. So every
machine generates the same rows, and any range of rows can be generated alone.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

SIZES = (1000, 500, 10_000, 5000, 300, 20, 2000, 600, 3, 3000, 1000, 8000, 1000)
SIZES += (25, 2000, 4000, 10, 1000, 800, 4, 6000, 18, 15, 3000, 100, 2000)
"""Number of values that each category column has on one day."""
COUNTS = 13
POWER = 1.1  # the value of rank r occurs about r**-POWER times as often as the first one
LIFE = 4  # days for which a value exists
EFFECT, FREQUENT = 0.6, 5  # standard deviation of the effect at rank 0; rank FREQUENT has half of it
PAIRS, TOGETHER = ((4, 8), (5, 22), (13, 16), (19, 24)), 0.25
SLOPES = np.linspace(-0.2, 0.2, COUNTS)
BASE = -1.6
EMPTY = 0.05  # share of empty counts, and of empty categories with more than FEW values
FEW = 1000
CHUNK = 100_000
# Numbers of independent random draws: WEIGHT and SIGN are draws for a value, the others for a row. VALUE, NO_VALUE and
# NO_COUNT have a draw for each column, and the column is added to the number: draw VALUE + column chooses a row's value
# of this column. COUNT has two draws for each column, so twice the column is added.
VALUE, NO_VALUE, COUNT, NO_COUNT, CLICK = 0, 100, 200, 300, 400
WEIGHT, SIGN = 500, 600

# Multiplying a value's number (rank and generation) by ODD gives its 8 hexadecimal digits; BACK inverts that.
ODD, BACK = np.uint64(0x9E3779B1), np.uint64(pow(0x9E3779B1, -1, 1 << 32))
LOW = np.uint64(0xFFFFFFFF)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Return 64 pseudo-random bits for each 64-bit number (the last step of the generator splitmix64)."""
    x = np.asarray(numbers, np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def chance(keys: np.ndarray, what: int) -> np.ndarray:
    """Return a pseudo-random number from 0 to 1 for each key. `what` is the number of the draw.

    Different draws give independent numbers.
    """
    return (mix(mix(keys) + mix([what + 1])) >> np.uint64(11)) * 2.0**-53


def bell(keys: np.ndarray, what: int) -> np.ndarray:
    """Return a pseudo-random number for each key, from a triangular distribution with mean 0 and standard deviation 1.

    `what` selects the stream of random numbers. The numbers of two streams are independent of each other if the values
    of `what` differ by 2 or more.
    """
    return (chance(keys, what) + chance(keys, what + 1) - 1) * np.sqrt(6)


def salt(column: int) -> np.ndarray:
    """Return 32 bits that differ by column, so that the same rank has another value in each column."""
    return mix([column + 1]) & LOW


def categories(rows: np.ndarray, column: int, day: int) -> np.ndarray:
    """Return each row's value of a category column as a 32-bit number; -1 for an empty value.

    `rows` are the keys of the rows: the unique 64-bit numbers that `rows()` calculates.
    """
    size = SIZES[column]
    most = (size + 1) ** (1 - POWER) - 1
    rank = (most * chance(rows, VALUE + column) + 1) ** (1 / (1 - POWER)) - 1
    rank = np.minimum(rank.astype(np.uint64), np.uint64(size - 1))
    age = np.uint64(day) + mix(rank + np.uint64(1 + column << 32)) % np.uint64(
        LIFE
    )  # a quarter of the values is new today
    number = rank + np.uint64(size) * (age // np.uint64(LIFE))
    digits = (number * ODD & LOW ^ salt(column)).astype(np.int64)
    if size <= FEW:
        return digits
    return np.where(chance(rows, NO_VALUE + column) < EMPTY, -1, digits)


def counts(rows: np.ndarray, column: int) -> np.ndarray:
    """Return each row's value of a count column; -1 for an empty value. `rows` are the keys of the rows."""
    found = np.floor(np.exp(1.5 * bell(rows, COUNT + 2 * column) + column % 5))
    return np.where(chance(rows, NO_COUNT + column) < EMPTY, -1, found).astype(np.int64)


def probability(ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the probability of a click that the known model gives each row.

    Args:
        ids: categories, [rows, 26]; -1 for an empty value.
        numbers: counts, [rows, 13]; -1 for an empty value.
    """
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
    """Generate rows, and return their clicks [count], categories [count, 26] and counts [count, 13].

    Args:
        first: number of the first row.
        count: number of rows.
        day: number of the rows' day, from 0; every day a quarter of the categories' values is new.
        seed: seed of the random numbers; another seed gives other rows.
    """
    keys = np.arange(first, first + count, dtype=np.uint64) + (np.uint64(seed) << np.uint64(48))
    keys += np.uint64(day) << np.uint64(36)
    ids = np.stack([categories(keys, column, day) for column in range(len(SIZES))], axis=1)
    numbers = np.stack([counts(keys, column) for column in range(COUNTS)], axis=1)
    return chance(keys, CLICK) < probability(ids, numbers), ids, numbers


def text(clicks: np.ndarray, ids: np.ndarray, numbers: np.ndarray) -> str:
    """Return clicks, categories and counts of rows as lines of Criteo's file format."""
    columns = [np.where(clicks, "1", "0").tolist()]
    for numbers_of_one, form in ((numbers, "{}"), (ids, "{:08x}")):
        for column in numbers_of_one.T:
            values, place = np.unique(column, return_inverse=True)
            words = ["" if value < 0 else form.format(value) for value in values.tolist()]
            columns.append([words[i] for i in place.tolist()])
    return "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def make(file: Path, count: int, day: int = 0, seed: int = 0) -> None:
    """Write the first `count` rows of a day to `file`. The file gets its name when it is complete."""
    draft = file.with_name(f".{file.name}.tmp")
    with draft.open("w", encoding="ascii", newline="\n") as out:
        for first in range(0, count, CHUNK):
            out.write(text(*rows(first, min(CHUNK, count - first), day, seed)))
    draft.replace(file)


def read(file: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield clicks, categories and counts of the rows in a file, at most CHUNK rows at a time."""
    with file.open(encoding="ascii") as lines:
        while part := [line.rstrip("\n").split("\t") for _, line in zip(range(CHUNK), lines, strict=False)]:
            clicks = np.array([row[0] == "1" for row in part])
            numbers = np.array([[int(word or -1) for word in row[1 : COUNTS + 1]] for row in part])
            ids = np.array([[int(word or "-1", 16) for word in row[COUNTS + 1 :]] for row in part])
            yield clicks, ids, numbers


def limit(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the best possible predictions for the rows of a file, and the rows' clicks, both of shape [rows, 1].

    The predictions come from the known model that generated the rows.
    """
    clicks, chances = [], []
    for clicked, ids, numbers in read(file):
        clicks.append(clicked)
        chances.append(probability(ids, numbers))
    return np.concatenate(chances)[:, None], np.concatenate(clicks)[:, None].astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line that the module's docstring shows. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m launcher.programs.ctr.generated_rows", description=__doc__
    )
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
