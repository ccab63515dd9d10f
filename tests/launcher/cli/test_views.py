"""The view of a run, built from API objects and files (views.yaml)."""

from pathlib import Path

import pytest
import yaml

from launcher.cli import run_display, run_view
from launcher.cli.job_sessions import ClusterSession

from .conftest import (
    DATA_JOB,
    JOB_STATES,
    K8S_JOB,
    make_files,
    make_idle,
    make_job,
    make_pod,
    make_restarts,
    make_status,
    make_view,
    matches,
    print_screen,
)
from .fake_cluster import FakeCluster

CASES = yaml.safe_load(Path(__file__).with_name("views.yaml").read_text())


def files_of(case):
    """Return the JSON objects of a case's files, as `make_files` takes them."""
    files = {key: case[key] for key in ("run", "manifest", "data_failure", "passes", "damage") if key in case}
    for key, make in (("status", make_status), ("idle", make_idle)):
        if key in case:
            files["status"] = make(restarts=make_restarts(case.get("restarts", 0)), **case[key])
    return files


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_view_of_objects_and_files(case):
    kinds = {"training": K8S_JOB, "data": DATA_JOB}
    jobs = [JOB_STATES[case[key]](name) for key, name in kinds.items() if key in case]
    for name, metadata in case.get("other_jobs", {}).items():
        jobs.append(make_job(name))
        jobs[-1]["metadata"] |= metadata
    given = {"pods": [make_pod(**pod) for pod in case.get("pods", ())], "events": case.get("events")}
    view = make_view(
        *jobs, **given, about=case.get("run_json"), deleted=case.get("deleted", False), **files_of(case)
    )
    screen = "\n".join(print_screen(view))
    seen = {
        "data": lambda: [view.data.state, view.data.reason],
        "training": lambda: [view.training.state, view.training.reason],
        "fraction": lambda: view.progress.fraction,
        "ranks": lambda: [
            [rank.rank, rank.pod, rank.node, rank.phase, rank.number, rank.batch, rank.loss]
            for rank in view.ranks
        ],
        "remarks": lambda: run_display.remarks(view),
        "wait": lambda: run_display.describe_wait(view),
        "line": lambda: run_display.status_line(view),
        "shown": lambda: {text: screen.count(text) for text in case["expected"]["shown"]},
    }
    if "in_folder" in case:
        assert run_view.build_folder_view("here", make_files(**files_of(case))).notes == view.notes
    for key, expected in case["expected"].items():
        found = seen[key]() if key in seen else getattr(view, key)
        if key == "notes":
            assert len(found) == len(expected), found
            assert all(map(matches, found, expected)), found
        elif key in ("wait", "line"):
            assert matches(found, expected), found
        else:
            assert found == expected, key


@pytest.mark.parametrize(("count", "title", "first"), [(2, "(2)", 0), (40, "(40, the last 5)", 35)])
def test_status_shows_the_attempt_and_the_newest_restarts_with_time_and_first_line_of_the_cause(
    count, title, first
):
    status = make_status(attempt=count, restarts=make_restarts(count))
    shown = print_screen(make_view(pods=[make_pod("p0", rank=0)], status=status))
    assert any(line.endswith(f"attempt {count}, {count} restarts") for line in shown)
    at = shown.index(f"Restarts {title}") + 2
    cells = [line.split(maxsplit=3) for line in shown[at : at + count - first]]
    cause = "rank 1 (pod p1 on node2): trainer exited with SIGKILL, time"
    assert [(attempt, text) for _, _, attempt, text in cells] == [
        (str(k), f"{cause} {k}") for k in range(first, count)
    ]
    assert count > 2 or cells[0][:2] == ["2026-11-21", "04:53:18Z"]
    assert not any("[x] line" in line for line in shown)


def test_a_pod_that_was_preempted_and_removed_is_explained_by_its_event(tmp_path):
    """Its object is gone as soon as its processes have exited."""
    cluster = FakeCluster(tmp_path)
    cluster.add_release(trainers=2)
    cluster.jobs = [make_job(K8S_JOB)]
    cluster.pods = [make_pod("p0", rank=0)]
    event = {"reason": "Preempted", "message": "Preempted by pod 42 on node node2"}
    for name in (f"{K8S_JOB}-1-x2x4z", "another-job-1-abcde"):
        cluster.events.append({**event, "involvedObject": {"name": name}})
    view = ClusterSession(cluster, "paddle-training").peek_view()
    removed = [note for note in view.notes if "removed" in note]
    assert removed == [f"pod {K8S_JOB}-1-x2x4z was removed: Preempted: Preempted by pod 42 on node node2"]
    assert removed[0] in run_display.remarks(view)
