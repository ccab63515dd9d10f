"""`leftovers`: which objects of a release are not in its values, and which are kept."""

from __future__ import annotations

from launcher.cli.cluster.releases import ReleaseRun
from launcher.cli.commands import leftovers
from launcher.schema import ManifestFile

from .conftest import DATA_JOB, DONE, K8S_JOB, RUN_JSON, make_job

RUN = ReleaseRun.from_json("demo", "paddle", RUN_JSON)


def thing(name, phase="Bound"):
    return {"metadata": {"name": name}, "status": {"phase": phase}}


def found(run, jobs, claims=("paddle-training", "other")):
    claims = [thing(name) for name in claims]
    return [
        (one.kind, one.name, bool(one.kept))
        for one in leftovers.select_leftovers(run, jobs, claims, [thing("other")])
    ]


def test_objects_of_the_values_are_no_leftovers():
    jobs = [make_job(K8S_JOB), make_job(DATA_JOB), make_job("older")]
    rest = [("persistent_volume_claim", "other", False), ("persistent_volume", "other", False)]
    assert found(RUN, jobs) == [("job", "older", False), *rest]


def test_a_running_job_is_kept_until_the_job_of_the_values_exists():
    rest = [("persistent_volume_claim", "other", True), ("persistent_volume", "other", True)]
    assert found(RUN, [make_job("older")]) == [("job", "older", True), *rest]
    ended = [("job", "older", False), *((kind, name, False) for kind, name, _ in rest)]
    assert found(RUN, [make_job("older", DONE)]) == ended


def test_all_objects_of_an_uninstalled_release_are_leftovers():
    assert [one[1] for one in found(None, [make_job(K8S_JOB)])] == [
        K8S_JOB,
        "paddle-training",
        "other",
        "other",
    ]


def test_a_complete_data_job_whose_data_was_replaced_is_found():
    job = make_job(DATA_JOB, DONE)
    assert leftovers.find_replaced_data(RUN, [job], ManifestFile(data_digest="e" * 64)) is job
    assert leftovers.find_replaced_data(RUN, [job], ManifestFile(data_digest=RUN.data_digest)) is None
    assert (
        leftovers.find_replaced_data(RUN, [make_job(DATA_JOB)], ManifestFile(data_digest="e" * 64)) is None
    ), "still at work"
