"""What of a release its values do not name, and what must stay of that."""

from __future__ import annotations

from launcher.cli import leftovers
from launcher.cli.view import Run

from .conftest import DATA_JOB, K8S_JOB, RUN_JSON, make_job

RUN = Run.of("demo", "paddle", RUN_JSON)
COMPLETE = ("Complete", "", "")


def thing(name, phase="Bound"):
    return {"metadata": {"name": name}, "status": {"phase": phase}}


def found(run, jobs, claims=("paddle-training", "other")):
    claims = [thing(name) for name in claims]
    return [(one.kind, one.name, bool(one.kept)) for one in leftovers.of(run, jobs, claims, [thing("other")])]


def test_what_the_values_name_is_no_leftover():
    jobs = [make_job(K8S_JOB), make_job(DATA_JOB), make_job("older")]
    rest = [("persistent_volume_claim", "other", False), ("persistent_volume", "other", False)]
    assert found(RUN, jobs) == [("job", "older", False), *rest]


def test_a_training_that_runs_stays_as_long_as_the_one_of_the_values_was_never_made():
    rest = [("persistent_volume_claim", "other", True), ("persistent_volume", "other", True)]
    assert found(RUN, [make_job("older")]) == [("job", "older", True), *rest]
    ended = [("job", "older", False), *((kind, name, False) for kind, name, _ in rest)]
    assert found(RUN, [make_job("older", COMPLETE)]) == ended


def test_all_of_a_release_that_is_gone_is_left_over():
    assert [one[1] for one in found(None, [make_job(K8S_JOB)])] == [
        K8S_JOB,
        "paddle-training",
        "other",
        "other",
    ]


def test_data_that_another_job_replaced_is_made_again_by_the_same_job():
    job = make_job(DATA_JOB, COMPLETE)
    assert leftovers.replaced_data(RUN, [job], {"dataDigest": "e" * 64}) is job
    assert leftovers.replaced_data(RUN, [job], {"dataDigest": RUN.data_digest}) is None
    assert leftovers.replaced_data(RUN, [make_job(DATA_JOB)], {"dataDigest": "e" * 64}) is None, (
        "still at work"
    )
