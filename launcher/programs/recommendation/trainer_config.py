"""Predict which rating a user gives a film, by a factorization machine over user, film and their attributes.

Each feature (a user, a film, an age group, an occupation, a genre, …) has a weight and a vector. A predicted
rating is the mean rating, plus the weights, plus the products of all pairs of vectors. The data are
MovieLens-100k as packed by RecBole: columns user_id, item_id, rating; side tables ml-100k.user, ml-100k.item.
"""

import numpy as np
import paddle

from launcher.program import Ids, Job, Real, real_number

COLUMNS = ("user_id", "item_id", "rating")
LABEL = "rating"
BLANK = {"rating": "3"}  # stands for the unknown rating of a film to predict
TABLES = ("ml-100k.user", "ml-100k.item")
LOWEST, HIGHEST = 1, 5
OPTIONS = {"factors": 8, "features": 14, "learning_rate": 0.005, "penalty": 0.02, "mean": 3.53}


def prepare(job: Job) -> dict:
    """Return the feature ids of each user and each film, from 1 on; 0 is padding.

    Only the side tables are used, not the shard, so every rank gets the same ids.
    """
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
    return {"users": users, "films": films}


def _table(path):
    """Return the rows of a side table as lists of texts. A side table is a file of `data.tables`; all ranks have it."""
    lines = path.read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]  # the first line has the column names


def inputs(job: Job) -> dict:
    """Return the inputs: the feature ids of user and film, and the rating."""
    return {"features": Ids(job.options["features"]), "rating": Real()}


def parse(row: dict, job: Job) -> dict:
    """Convert one row (column → text) to the network's inputs; raise ValueError for an invalid row."""
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
    """Return the predicted rating, float32 [batch, 1], and the loss."""
    features, rating = data["features"], data["rating"]
    table = job.embedding(features, 1 + job.options["factors"], "feature", spread=0.02)
    weights = paddle.slice(table, axes=[2], starts=[0], ends=[1])
    vectors = paddle.slice(table, axes=[2], starts=[1], ends=[1 + job.options["factors"]])
    linear = paddle.sum(weights, axis=[1, 2])
    pairs = 0.5 * paddle.sum(
        paddle.square(paddle.sum(vectors, axis=1)) - paddle.sum(paddle.square(vectors), axis=1), axis=1
    )
    bias = paddle.static.create_parameter(
        [1], "float32", name="bias", default_initializer=paddle.nn.initializer.Constant(0.0)
    )
    # Every batch of every trainer updates the same bias. With asynchronous updates the bias would oscillate, so
    # the factor 0.1 slows it down.
    guess = paddle.unsqueeze(linear + pairs, 1) + job.options["mean"] + 0.1 * bias
    loss = paddle.mean(paddle.square(guess - rating))
    if job.options["penalty"]:
        loss = loss + job.options["penalty"] * paddle.mean(paddle.sum(paddle.square(table), axis=[1, 2]))
    return paddle.clip(guess, LOWEST, HIGHEST), loss


def metrics(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Return `rmse`: the root of the mean squared error, in stars."""
    return {"rmse": float(np.sqrt(np.mean(np.square(prediction - label))))}


def optimizer(job):
    """Return the optimizer of all parameters."""
    return paddle.optimizer.Adam(job.options["learning_rate"])


def describe(prediction: np.ndarray) -> str:
    """Return the text of one row's prediction, such as `3.7 of 5 stars`."""
    return f"{prediction[0]:.1f} of {HIGHEST} stars"
