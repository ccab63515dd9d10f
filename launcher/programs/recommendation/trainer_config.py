"""What a user will rate a film: a factorization machine over user, film and their attributes.

Each feature (a user, a film, an age group, an occupation, a genre, …) has a weight and a vector; a rating is
the mean rating, plus the weights, plus the products of all pairs of vectors. Data: MovieLens-100k as RecBole
packs it, columns user_id, item_id, rating; the tables ml-100k.user and ml-100k.item.
"""

import numpy as np
import paddle

from launcher.worker.interface import Ids, Job, Real, real_number

COLUMNS = ("user_id", "item_id", "rating")
LABEL = "rating"
BLANK = {"rating": "3"}  # any that parses: a film not yet rated has none
TABLES = ("ml-100k.user", "ml-100k.item")
LOWEST, HIGHEST = 1, 5
OPTIONS = {"factors": 8, "features": 14, "learning_rate": 0.005, "penalty": 0.02, "mean": 3.53}


def prepare(job: Job) -> dict:
    """Numbers for all features, from the side tables alone, so that every rank counts alike. 0 fills up."""
    number: dict[str, int] = {}

    def feature(name: str) -> int:
        return number.setdefault(name, len(number) + 1)

    users, films = {}, {}
    for row in _table(job.tables["ml-100k.user"]):
        user, age, gender, occupation = row[:4]
        users[user] = [
            feature(f"user {user}"),
            feature(f"age {int(age) // 10}"),
            feature(f"gender {gender}"),
            feature(f"occupation {occupation}"),
        ]
    for film, _title, year, genres in _table(job.tables["ml-100k.item"]):
        decade = year[:3] if year.isdecimal() else "unknown"
        films[film] = [
            feature(f"film {film}"),
            feature(f"decade {decade}"),
            *(feature(f"genre {genre}") for genre in genres.split()),
        ]
    return {"users": users, "films": films, "rows": len(number) + 1}


def _table(path):
    lines = path.read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]  # the first line names the columns


def inputs(job: Job) -> dict:
    return {"features": Ids(job.options["features"]), "rating": Real()}


def parse(row: dict, job: Job) -> dict:
    for column, known, table in (
        ("user_id", job.side["users"], TABLES[0]),
        ("item_id", job.side["films"], TABLES[1]),
    ):
        if row[column] not in known:
            raise ValueError(f"column {column} is {row[column]!r}, but {table} has no such row")
    rating = real_number(row, "rating", LOWEST, HIGHEST)
    return {
        "features": job.side["users"][row["user_id"]] + job.side["films"][row["item_id"]],
        "rating": rating,
    }


def network(data, job):
    features, rating = data["features"], data["rating"]
    table = job.embedding(features, 1 + job.options["factors"], "feature", rows=job.side["rows"], spread=0.02)
    weights = paddle.slice(table, axes=[2], starts=[0], ends=[1])
    vectors = paddle.slice(table, axes=[2], starts=[1], ends=[1 + job.options["factors"]])
    linear = paddle.sum(weights, axis=[1, 2])
    pairs = 0.5 * paddle.sum(
        paddle.square(paddle.sum(vectors, axis=1)) - paddle.sum(paddle.square(vectors), axis=1), axis=1
    )
    bias = paddle.static.create_parameter(
        [1], "float32", name="bias", default_initializer=paddle.nn.initializer.Constant(0.0)
    )
    # A tenth: every batch of every trainer moves the one bias, and asynchronously it would swing.
    guess = paddle.unsqueeze(linear + pairs, 1) + job.options["mean"] + 0.1 * bias
    loss = paddle.mean(paddle.square(guess - rating))
    if job.options["penalty"]:
        loss = loss + job.options["penalty"] * paddle.mean(paddle.sum(paddle.square(table), axis=[1, 2]))
    return paddle.clip(guess, LOWEST, HIGHEST), loss


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """rmse: root of the mean squared difference, in stars."""
    return {"rmse": float(np.sqrt(np.mean(np.square(prediction - label))))}


def optimizer(job):
    return paddle.optimizer.Adam(job.options["learning_rate"])


def describe(prediction: np.ndarray) -> str:
    return f"{prediction[0]:.1f} of {HIGHEST} stars"
