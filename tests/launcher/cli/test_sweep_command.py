"""`sweep`: the order of its trials, the effect of a failure, pruning, resuming, and the choice of the best."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from launcher.cli import launch_training
from launcher.cli.cluster_api import UnreachableError
from launcher.cli.commands import sweep
from launcher.cli.commands.sweep import SweepLoop, Trial, can_launch
from launcher.cli.errors import CliError, RunFailedError, UsageError
from launcher.cli.launch_training import TrainingPlan
from launcher.cli.run_view import JobView, RankView, RunView
from launcher.cli.search_space import Axis, read_space
from launcher.cli.storage import folder_storage
from launcher.cli.sweep_study import StudyTrial, SweepStudy, choose_journal, intact_records, make_pruner
from launcher.errors import DataError
from testkit.written_files import write_files

from .fake_cluster import FakeCluster


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(sweep, "PAUSE_SECONDS", 0.0)


class Session:
    """A run that has a pass with each of `scores`, then ends, which cannot be read the first `failures` times."""

    def __init__(self, world, name, *, scores, end="complete", prepares=0, failures=0):
        self.world, self.name, self.scores, self.end = world, name, list(scores), end
        self.prepares, self.failures, self.passed = prepares, failures, 0

    def view(self, state, **more):
        rows = [
            {"pass": number, "train_loss": 1.0, "test_error": score}
            for number, score in enumerate(self.scores[: self.passed])
        ]
        return RunView(self.name, self.name, state, passes=rows, **more)

    def read_view(self):
        if self.prepares > 0:
            self.prepares -= 1
            self.world.happened.append(f"{self.name} prepares")
            return self.view("preparing")
        self.passed += 1
        if self.passed <= len(self.scores):
            return self.view("training")
        if self.failures > 0:
            self.failures -= 1
            raise UnreachableError("cannot be reached")
        self.world.happened.append(f"{self.name} ends")
        score = {"error": self.scores[-1], "auc": 1 - self.scores[-1]} if self.end == "complete" else {}
        return self.view(self.end, score=score, cause="no shoes" if self.end == "failed" else "")


class World:
    """The releases of a sweep in memory (`ClusterReleases`); `runs` are more arguments of each session, in order."""

    def __init__(self, *runs):
        self.runs, self.happened, self.installed, self.pods, self.copies = runs, [], {}, {}, 0
        self.settings = {}

    def attach(self, release):
        return self.installed.get(release)

    def launch(self, release, settings):
        self.happened.append(f"{release} starts")
        self.settings[release] = settings
        run = self.runs[int(release.rpartition("-")[2]) - 1]
        if isinstance(run, Exception):
            raise run
        self.installed[release] = Session(self, release, **run)
        return self.installed[release]

    def stop(self, release):
        self.happened.append(f"{release} is stopped")
        self.pods[release] = 2

    def has_pods(self, release):
        self.pods[release] -= 1
        return self.pods[release] > 0

    def uninstall(self, releases):
        for release in releases:
            self.installed.pop(release, None)

    def save_journal(self):
        self.copies += 1


AXES = [Axis("rate", low=0.1, high=0.5), Axis("width", ("4", "8"))]
COMPLETE = [{"scores": [0.9, score]} for score in (0.3, 0.2, 0.4)]
FAILED = {"scores": [0.9], "end": "failed"}


def make_study(folder, pruner="none", sampler="random", metric=None, axes=AXES):
    study = SweepStudy(folder / "study.journal", "t", axes, sampler, make_pruner(pruner, 3))
    if study.journal.exists():
        study.open({"a": 1})
    else:
        study.create(metric, {"a": 1})
    return study


def kept_in(folder):
    """Return a storage of jobs (`KeptStorage`) that is a folder on this machine."""
    return SimpleNamespace(job=lambda name: folder_storage(folder / name), close=lambda: None)


def run_sweep(study, world, parallel=1, wanted=None, by=None):
    """Run a sweep to its end; return (the loop, the printed lines)."""
    printed = []
    loop = SweepLoop(study, world, wanted or len(world.runs), parallel, by, printed.append)
    loop.run(lambda: None)
    return loop, printed


def test_at_most_parallel_trials_run_and_a_failure_does_not_affect_others(tmp_path):
    world = World(COMPLETE[0], FAILED, COMPLETE[1])
    loop, _ = run_sweep(make_study(tmp_path), world)
    assert world.happened == [f"t-{n} {what}" for n in (1, 2, 3) for what in ("starts", "ends")]
    assert [trial.state for trial in loop.trials] == ["complete", "failed", "complete"]
    assert loop.trials[1].asked.cause == "no shoes"
    best, why = loop.best()
    assert (best.release, why, list(world.installed)) == ("t-3", "lowest error", ["t-3"])
    assert loop.study.journal.read_bytes() == loop._saved, "the last change is on the storage, too"
    (tmp_path / "two").mkdir()
    world = World(*COMPLETE)
    run_sweep(make_study(tmp_path / "two"), world, parallel=2)
    assert world.happened[:2] == ["t-1 starts", "t-2 starts"]
    assert world.happened.index("t-3 starts") > world.happened.index("t-1 ends")


def test_the_study_gets_the_direction_of_the_first_or_the_given_score(tmp_path):
    loop, _ = run_sweep(make_study(tmp_path), World(*COMPLETE), by="auc")
    assert (loop.best()[0].release, loop.best()[1]) == ("t-2", "highest auc")
    again = make_study(tmp_path)
    assert (again.metric, again._study.direction.name) == ("auc", "MAXIMIZE")
    with pytest.raises(
        UsageError, match=r"--by loss: t-1 has no such score.* Fix: choose one of: error, auc"
    ):
        (tmp_path / "other").mkdir()
        run_sweep(make_study(tmp_path / "other"), World(*COMPLETE), by="loss")


def test_a_sweep_without_any_score_is_an_error(tmp_path):
    loop, _ = run_sweep(make_study(tmp_path), World(FAILED, {"scores": [float("nan")]}))
    with pytest.raises(RunFailedError, match=r"t-1: no shoes; t-2: .*its score .* is nan"):
        loop.best()


def test_other_trials_wait_until_the_first_has_its_data(tmp_path):
    """Their data Jobs would make the same data at the same time."""
    world = World({**COMPLETE[0], "prepares": 3}, *COMPLETE[1:])
    run_sweep(make_study(tmp_path), world, parallel=3)
    assert world.happened[:6] == ["t-1 starts", *["t-1 prepares"] * 3, "t-2 starts", "t-3 starts"]


def make_trial(state="training", phases=("Running",), training="running", result=""):
    view = RunView("", "", state, training=JobView("j", training), ranks=[RankView(phase=p) for p in phases])
    asked = SimpleNamespace(result=result)
    return Trial(asked, "t-1", session=object(), view=view)


@pytest.mark.parametrize(
    ("trial", "launches"),
    [
        (make_trial(), True),
        (make_trial("rendezvous", ("Running", "missing")), False),
        (make_trial("pending", ("-", "-"), "waiting"), False),
        (make_trial("pending", ("Pending", "Running")), False),
        (make_trial("suspended", ("-",), "suspended"), True),
        (make_trial("preparing"), False),
        (make_trial("complete", result="complete"), True),
    ],
    ids=["trains", "half admitted", "quota", "no node", "Kueue holds it", "prepares data", "over"],
)
def test_another_trial_starts_only_if_none_waits_for_pods(trial, launches):
    assert can_launch([trial], 2) == launches
    assert can_launch([trial, trial], 2) == (not trial.is_live)


def test_a_pruned_trial_is_stopped_and_its_slot_is_free_when_its_pods_are_gone(tmp_path):
    study = make_study(tmp_path, "median", metric="error")
    good, bad = {"scores": [0.3, 0.2, 0.1]}, {"scores": [0.9, 0.9, 0.9]}
    world = World(*[good] * 5, bad, good)
    loop, printed = run_sweep(study, world)
    assert [trial.state for trial in loop.trials] == ["complete"] * 5 + ["pruned", "complete"]
    assert (loop.trials[5].asked.step, loop.trials[5].asked.value) == (1, 0.9)
    assert world.happened[-4:] == ["t-6 starts", "t-6 is stopped", "t-7 starts", "t-7 ends"]
    assert "t-6" not in world.installed
    assert any(line.startswith("t-6: stopped, ") for line in printed)


def test_asha_compares_a_trial_with_earlier_ones_after_one_and_three_passes(tmp_path):
    """The first trial has nothing to be compared with, and only the last one is among the best third."""
    study = make_study(tmp_path, "asha", metric="error")
    bad, good = {"scores": [0.9, 0.9, 0.9]}, {"scores": [0.2, 0.2, 0.1]}
    loop, _ = run_sweep(study, World({"scores": [0.3, 0.3, 0.3]}, bad, bad, good))
    assert [trial.state for trial in loop.trials] == ["complete", "pruned", "pruned", "complete"]
    assert [trial.asked.step for trial in loop.trials] == [3, 1, 1, 3]


def test_an_interrupted_sweep_resumes_without_training_anything_twice(tmp_path):
    """t-1 is complete, t-2 has ended and t-3 trains since the command was killed, t-4 was asked for, not launched."""
    world = World(*COMPLETE, COMPLETE[0], COMPLETE[0])
    study = make_study(tmp_path)
    loop = SweepLoop(study, world, 1, 1, None, lambda _: None)
    loop.run(lambda: None)
    for release in ("t-2", "t-3"):
        world.launch(release, study.ask().settings)
    world.installed["t-2"].passed = 2
    asked = study.ask().settings
    world.happened.clear()
    loop, _ = run_sweep(make_study(tmp_path), world, parallel=3, wanted=5)
    assert sorted(world.happened) == sorted(
        ["t-2 ends", "t-3 ends", "t-4 starts", "t-4 ends", "t-5 starts", "t-5 ends"]
    )
    assert world.settings["t-4"] == asked
    assert [trial.state for trial in loop.trials] == ["complete"] * 5
    assert (loop.best()[0].release, list(world.installed)) == ("t-2", ["t-2"])


def test_a_grid_is_tried_in_order_and_goes_on_where_it_was(tmp_path):
    axes = read_space(["a=1..2", "b=x,y"], None)
    study = make_study(tmp_path, sampler="grid", axes=axes)
    assert [study.ask().settings for _ in range(2)] == [("a=1", "b=x"), ("a=1", "b=y")]
    study = make_study(tmp_path, sampler="grid", axes=axes)
    assert [study.ask().settings for _ in range(2)] == [("a=2", "b=x"), ("a=2", "b=y")]


def test_a_trial_whose_settings_were_not_complete_when_the_command_was_killed_has_failed(tmp_path):
    study = make_study(tmp_path)
    study._study.ask()
    (trial,) = make_study(tmp_path).trials()
    assert (trial.result, trial.settings) == ("failed", ())


def test_a_cut_record_of_the_journal_is_removed_and_the_longer_copy_is_used(tmp_path, capsys):
    study = make_study(tmp_path)
    intact = study.journal.read_bytes()
    assert intact_records(intact, "") == intact_records(intact + b'{"op_code":4,', "") == intact
    assert intact_records(b"", "") == b""
    kept = kept_in(tmp_path)
    study.journal.write_bytes(intact + b'{"op_code":4,')
    sweep.open_study(study, kept, None, {"a": 1}, resume=True)
    assert study.journal.read_bytes() == intact
    assert "removed the last record, of 13 bytes" in capsys.readouterr().err
    make_study(tmp_path).ask()
    longer = study.journal.read_bytes()
    assert choose_journal(intact, longer) == choose_journal(longer, b"") == longer
    with pytest.raises(CliError, match="have different trials"):
        choose_journal(longer, intact + b"x" * 10)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n3,4", b"one line", bytes(range(256)), b'{"a": 1}\n', b"[1]\n", None]
)
def test_a_file_that_is_no_intact_journal_is_rejected_and_left_as_it_is(tmp_path, content, resume):
    study = make_study(tmp_path)
    first, *others = study.journal.read_bytes().splitlines(keepends=True)
    content = content or b"".join([first, bytes(20) + b"\n", *others])
    study.journal.write_bytes(content)
    kept = kept_in(tmp_path)
    with pytest.raises(DataError, match=r"line \d is no record of a sweep.* Fix: give another file"):
        sweep.open_study(study, kept, None, {"a": 1}, resume=resume)
    assert study.journal.read_bytes() == content


def test_a_sweep_with_another_space_or_program_cannot_be_resumed(tmp_path):
    study = make_study(tmp_path)
    with pytest.raises(UsageError, match=r"could not be compared: a was 1 and is 2"):
        study.open({"a": 2})


def test_a_score_is_read_again_if_the_cluster_was_unreachable_when_its_run_ended(tmp_path):
    loop, printed = run_sweep(make_study(tmp_path), World({**COMPLETE[0], "failures": 1}))
    assert loop.best()[0].release == "t-1"
    assert "t-1: cannot be reached. Retrying." in printed


@pytest.mark.parametrize("run", [{**COMPLETE[0], "failures": 10**9}, UnreachableError("cannot be reached")])
def test_a_cluster_that_stays_unreachable_stops_the_sweep(tmp_path, monkeypatch, run):
    now = [0.0]

    def sleep(seconds):
        now[0] += 30.0
        assert now[0] < 1000, "it waits for ever"

    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(UnreachableError):
        run_sweep(make_study(tmp_path), World(run))


@pytest.mark.slow
def test_the_report_is_one_page_with_the_table_and_the_plots(tmp_path):
    loop, _ = run_sweep(make_study(tmp_path), World(*COMPLETE))
    loop.study.write_report(tmp_path / "report.html", [["release"], ["t-<1>"]])
    page = (tmp_path / "report.html").read_text()
    assert "t-&lt;1&gt;" in page
    assert [title for title in ("History", "Importance", "Parallel coordinates") if f"<h2>{title}" in page]
    assert '<script src="http' not in page
    assert "plotly.js v" in page, "the page needs no network"


SWEEP_ERRORS = yaml.safe_load(Path(__file__).with_name("sweep_errors.yaml").read_text("utf-8"))


@pytest.mark.parametrize(("options", "message"), SWEEP_ERRORS.items(), ids=SWEEP_ERRORS)
def test_bad_input_is_one_error_before_anything_is_made(cli, here, options, message):
    text = "def inputs(job): ...\ndef parse(row, job): ...\nOPTIONS = {'rate': 0.1}\n"
    write_files(here / "line", {"trainer_config.py": text})
    code, out, err = cli("sweep", "line", "--no-check", "--data", "s3://x/y", *shlex.split(options))
    assert (code, out) == (64, ""), err
    assert message in err
    assert sorted(path.name for path in here.iterdir()) == ["line"]


def test_a_search_file_has_lists_and_ranges(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text("rate: log:1e-4..1e-1\nlayers: 1..3\nwidth: [8, 16]\nname: a,b\n")
    rate, layers, width, name = read_space([], file)
    assert (rate.is_log, rate.is_whole, rate.ends()) == (True, False, (1e-4, 0.1))
    assert (layers.is_whole, layers.setting(2)) == (True, "layers=2")
    assert (width.choices, name.choices, width.setting("8")) == (("8", "16"), ("a", "b"), "width=8")
    file.write_text("day: [2024-01-01, 2]\n")
    assert read_space([], file)[0].choices == ("2024-01-01", "2")
    for text, message in (
        ("- rate", "has no keys"),
        ("rate: {a: 1}", "the values are an object"),
        ("rate: 0..1\nrate: 0..2", "the key rate is searched twice"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_space([], file)


def test_a_searched_option_replaces_the_one_of_the_arguments():
    values = {"training": {"args": ["data", "--rate", "0.1", "--width=3", "--rate-max", "1"]}}
    changed = launch_training.apply_settings(values, ["rate=0.2"])
    assert changed["training"]["args"] == ["data", "--width=3", "--rate-max", "1", "--rate=0.2"]


def test_only_the_command_itself_imports_optuna():
    code = "import sys; from launcher.cli import main; print(*{'optuna', 'plotly', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_sweep_is_resumed_from_the_copy_on_the_storage_and_never_started_twice(tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    kept = kept_in(jobs)

    def study_in(folder):
        return SweepStudy(tmp_path / folder / "study.journal", "t", AXES, "random", make_pruner("none", 3))

    def open_in(folder, by=None, *, resume):
        study = study_in(folder)
        sweep.open_study(study, kept, by, {"a": 1}, resume=resume)
        return study

    with pytest.raises(UsageError, match="there is no sweep t to resume"):
        open_in("here", resume=True)
    study = open_in("here", "error", resume=False)
    asked = study.ask()
    releases = sweep.ClusterReleases(None, None, None, None, kept, study)
    releases.save_journal()
    assert [path.name for path in (jobs / ".sweeps").iterdir()] == ["t.journal"]
    for folder in ("here", "other machine"):
        with pytest.raises(UsageError, match=r"there is a sweep t already .* Fix: continue it with --resume"):
            open_in(folder, resume=False)
    assert open_in("other machine", resume=True).trials() == [asked]
    with pytest.raises(UsageError, match="--by auc: the sweep t searches by error"):
        open_in("here", "auc", resume=True)


@pytest.fixture
def sweep_of_two(cli, here, monkeypatch):
    """Return a function that runs the command for two trials; `second` is an error of the second launch."""

    def run(second, *options):
        cluster, world = FakeCluster(), World()
        cluster.add_release()
        (here / "jobs").mkdir()
        kept = kept_in(here / "jobs")
        trial = {"training": {"packages": "pushed-by-another-machine"}}
        helm = SimpleNamespace(
            check=lambda *_: "", read_values=lambda name: trial if name == "t-1" else cluster.values[name]
        )

        def launch(plan, *_):
            if plan.job == "t-2" and second:
                raise second
            return True

        monkeypatch.setattr(sweep, "plan_ends", lambda *_: [TrainingPlan([], {"jobName": "t"})] * 2)
        monkeypatch.setattr(sweep, "launch", launch)
        monkeypatch.setattr(
            sweep.ClusterReleases, "_session", lambda _, name: Session(world, name, **COMPLETE[0])
        )
        monkeypatch.setattr(sweep, "KeptStorage", lambda *_: kept)
        monkeypatch.setattr(sweep, "Helm", lambda _: helm)
        monkeypatch.setattr(sweep.LaunchOptions, "connect", lambda _: cluster)
        code, out, err = cli(
            "sweep", "x", "--search", "rate=1..9", "--trials", "2", "--parallel", "2", *options
        )
        assert (here / "jobs" / ".sweeps" / "t.journal").read_bytes() == Path(
            "t.sweep/study.journal"
        ).read_bytes()
        assert not cluster.leases
        return code, out, err

    return run


@pytest.mark.slow
def test_the_result_is_the_best_trial_its_values_and_the_report(sweep_of_two):
    code, out, err = sweep_of_two(None, "-o", "json")
    result = json.loads(out)
    assert (code, result["best"], result["by"]) == (0, "t-1", "lowest error"), err
    assert [trial["value"] for trial in result["trials"]] == [0.3, 0.3]
    values = yaml.safe_load(Path(result["values"]).read_text())
    args = [f"--{result['trials'][0]['settings'][0]}"]
    training = {"args": args, "packages": "pushed-by-another-machine"}
    assert values == {"jobName": "t-1", "training": training}
    assert "t-2" in Path(result["report"]).read_text()


def test_a_sweep_that_fails_prints_no_json_and_says_how_to_continue(sweep_of_two):
    code, out, err = sweep_of_two(CliError("the storage is full"), "-o", "json")
    assert (code, out) == (3, "")
    assert "these releases continue on the cluster: t-1. 0 of 2 trials are over.\nAdd --resume" in err
    assert err.rstrip().endswith("the storage is full")


@pytest.mark.parametrize(("passes", "is_pruned"), [(2, False), (3, True)])
def test_a_trial_whose_last_pass_is_done_is_not_pruned(passes, is_pruned):
    asked = StudyTrial(5, {}, "", step=1)
    rows = [{"pass": number, "test_error": 0.9} for number in range(2)]
    view = RunView("", "", "training", passes=rows, progress=SimpleNamespace(passes=passes))
    study = SimpleNamespace(metric="error", report=lambda *_: True)
    trial = Trial(asked, "t-5", session=object(), view=view)
    loop = SimpleNamespace(study=study)
    assert SweepLoop._report_passes(loop, trial, view) == is_pruned
    assert trial.asked.step == 2
