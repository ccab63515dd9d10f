"""The small files that describe a job and its runs, read from the shared storage; damaged ones are errors.

The runs of a job are the current output, and the earlier ones that were moved to `runs/`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from launcher import metrics
from launcher.cli.errors import UsageError
from launcher.cli.storage import Storage, read_small_files
from launcher.dataprep.prepared_data import make_again_fix
from launcher.errors import DataError
from launcher.io import run_record
from launcher.paths import JobPaths, OutputPaths
from launcher.reporting import run_settings
from launcher.schema import DataFailure, ManifestFile, ProgramFile, RunFile, StatusFile, read_fields

OUTPUT = OutputPaths(Path("output"))
"""Paths of the current output, below the job's folder."""
_JOB = JobPaths(Path(), "")
MANIFEST, DATA_FAILED = _JOB.manifest.as_posix(), _JOB.data_failed.as_posix()
STATUS = OUTPUT.status_json.as_posix()
RUNS, CURRENT = "runs", OUTPUT.root.as_posix()
AGAIN_SECONDS = 3.0
"""A damaged status.json is read again after this time: rank 0 of a live run writes it every 2 s."""
Damage = dict[str, str]
"""What is wrong with each damaged file, with the fix, by the file's path below the job's folder."""
Shape = TypeVar("Shape")


@dataclass(frozen=True)
class JobFiles:
    """The contents of the files that describe a job's data and a run; None for an absent or damaged one."""

    status: StatusFile | None = None
    run: RunFile | None = None
    manifest: ManifestFile | None = None
    data_failure: DataFailure | None = None
    passes: Sequence[Mapping[str, Any]] = ()
    """One row for each pass, from metrics.csv (`launcher.metrics.pass_table`)."""
    damage: Damage = field(default_factory=dict)
    was_read: bool = True
    """Whether the files were read; if not, None does not mean that a file is absent."""
    problem: str = ""
    """Why the files cannot be read; empty if they were read."""


def check_intact(damage: Mapping[str, str], where: str) -> None:
    """Raise DataError if a file is damaged. Commands call this after they have shown what the others contain.

    `where` is the job's folder or the release, for the message.
    """
    if damage:
        raise DataError(f"{where}: {' '.join(damage.values())}")


def _describe_damage(name: str, why: str) -> str:
    """Return the text for the file `name` in `Damage`: `why` (its path and what is wrong with it) and a fix."""
    fix = "Fix: restore it from a backup of the storage; without one, delete it, so that it counts as absent."
    if name in (MANIFEST, DATA_FAILED):
        fix = make_again_fix(name)
    elif name.endswith(OUTPUT.run_json.name):
        fix = f"Fix: restore it, or its copy {OUTPUT.run_copy.name}, from a backup of the storage."
    return f"{why} {fix}"


class FoundFiles:
    """Parses files of the storage, given as contents by path (`read_small_files`); notes which are damaged."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        """Parse nothing yet."""
        self.contents = contents
        self.damage: Damage = {}

    def json(self, shape: Any, *paths: Path) -> dict[str, Any] | None:
        """Return the JSON object in the first intact file; None if all are absent or damaged.

        `shape` is the type of the object (`schema.mismatch`).
        """
        names = [path.as_posix() for path in paths]
        value, error = run_record.first_intact(((name, self.contents.get(name)) for name in names), shape)
        if value is None and error is not None:
            self.damage[names[0]] = _describe_damage(names[0], str(error))
        return value

    def read(self, shape: type[Shape], *paths: Path) -> Shape | None:
        """Return the first intact file as an object of the dataclass `shape`; None if all are absent or damaged."""
        value = self.json(shape, *paths)
        return None if value is None else read_fields(shape, value)

    def run(self, output: OutputPaths) -> RunFile | None:
        """Return an output's run record: run.json, or its copy; None if both are absent or damaged."""
        return self.read(RunFile, output.run_json, output.run_copy)

    def passes(self, output: OutputPaths) -> list[dict[str, Any]]:
        """Return the table of the passes (`metrics.pass_table`) from the intact rows of an output's metrics.csv."""
        name = output.metrics_csv.as_posix()
        content = self.contents.get(name, b"")
        if name in self.contents and (why := metrics.find_damage(content)):
            self.damage[name] = _describe_damage(name, f"{name} is damaged: {why}. The other rows are shown.")
        return metrics.pass_table(metrics.parse_metrics(content.decode(errors="replace")))


def read_job_files(storage: Storage, *, again: bool = True) -> JobFiles:
    """Read the files that describe the data and the current run of the storage's job."""
    names = [path.as_posix() for path in (OUTPUT.run_json, OUTPUT.run_copy, OUTPUT.metrics_csv)]
    found = FoundFiles(read_small_files(storage, [STATUS, MANIFEST, DATA_FAILED, *names]))
    status = found.read(StatusFile, OUTPUT.status_json)
    if again and found.damage:
        time.sleep(AGAIN_SECONDS)
        return read_job_files(storage, again=False)
    return JobFiles(
        status=status,
        run=found.run(OUTPUT),
        manifest=found.read(ManifestFile, _JOB.manifest),
        data_failure=found.read(DataFailure, _JOB.data_failed),
        passes=found.passes(OUTPUT),
        damage=found.damage,
    )


@dataclass(frozen=True)
class SavedRun:
    """A run of a job, as `runs`, `compare` and `results` show it. `folder` is `output`, or `runs/<name>`."""

    folder: str
    record: RunFile
    """run.json, with the program's default options if program.json has them."""
    passes: Sequence[Mapping[str, Any]]
    """One row for each pass, from the run's metrics.csv (`launcher.metrics.pass_table`)."""
    is_locked: bool = False
    """Whether the folder has a run.lock, so that a process may write there."""
    program: Mapping[str, str] = field(default_factory=dict)
    """The text of the program's files by name; empty if it was not kept."""
    damage: Damage = field(default_factory=dict)
    """The run's files that are damaged."""

    @property
    def is_unknown(self) -> bool:
        """Whether the run record is damaged, so that state, age, settings and score of the run are unknown."""
        return (PurePosixPath(self.folder) / OUTPUT.run_json.name).as_posix() in self.damage

    @property
    def state(self) -> str:
        """The state by the run record; `damaged` if that is damaged, `unknown` if it is absent."""
        return "damaged" if self.is_unknown else self.record.state or "unknown"

    @property
    def name(self) -> str:
        """The name that `compare` and `results --run` accept."""
        return self.folder.removeprefix(f"{RUNS}/")

    @property
    def seconds(self) -> float | None:
        """Seconds from the run's start to its end; None while it runs."""
        return self.record.finished - self.record.started if self.record.finished else None

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings by name, as `run_settings.settings_of_run` returns them; digests are shortened."""
        return run_settings.settings_of_run(self.record.content, len(self.passes))

    @property
    def best(self) -> dict[str, Any]:
        """The run's best pass, as `launcher.metrics.best_pass` returns it."""
        return metrics.best_pass(self.record.content, self.passes)

    @property
    def pod_hours(self) -> float | None:
        """Hours of the run times its number of training pods, for an estimate of the nodes' cost; None if unknown."""
        trainers = self.record.fingerprint.get("trainers")
        return None if self.seconds is None or not trainers else int(trainers) * self.seconds / 3600

    def as_json(self) -> dict[str, Any]:
        """Return the run as `runs`, `compare` and `results` print it with `-o json`."""
        return {
            "name": self.name,
            "folder": self.folder,
            "runId": self.record.run_id,
            "state": self.state,
            "started": self.record.started,
            "seconds": self.seconds,
            "podHours": self.pod_hours,
            "score": self.record.score,
            "best": self.best,
            "exported": self.record.exported_to,
            "restarts": [asdict(one) for one in self.record.restarts],
            "settings": self.settings,
            "passes": list(self.passes),
            "damage": self.damage,
        }


def read_runs(storage: Storage) -> list[SavedRun]:
    """Return the runs of the job: the current one first, then the others, newest first."""
    kept = (OUTPUT.run_json, OUTPUT.metrics_csv, OUTPUT.lock, OUTPUT.program_json, OUTPUT.run_copy)
    patterns = [f"{place}/{path.name}" for place in (CURRENT, f"{RUNS}/*") for path in kept]
    contents = read_small_files(storage, patterns)
    runs = []
    for folder in sorted({str(PurePosixPath(name).parent) for name in contents}):
        output = OutputPaths(Path(folder))
        found = FoundFiles(contents)
        program, record = found.json(ProgramFile, output.program_json) or {}, found.run(output)
        content = run_settings.with_options(record.content if record else {}, program)
        runs.append(
            SavedRun(
                folder=folder,
                record=read_fields(RunFile, content),
                passes=found.passes(output),
                is_locked=output.lock.as_posix() in contents,
                program=program.get("files") or {},
                damage=found.damage,
            )
        )
    return sorted(runs, key=lambda run: (run.folder == CURRENT, run.record.started), reverse=True)


def find_run(runs: Sequence[SavedRun], name: str) -> SavedRun:
    """Return the run with that name, or the only one whose name begins so. Raises UsageError otherwise."""
    matching = [run for run in runs if run.name == name] or [run for run in runs if run.name.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    listed = ", ".join(run.name for run in runs) or "(the job has none yet)"
    problem = "matches several runs" if matching else "is not a run of this job"
    raise UsageError(f"the name {name!r} {problem}", f"choose one of: {listed}")


def differing_settings(runs: Sequence[SavedRun]) -> list[str]:
    """Return the names of the settings that differ between the runs, in the order in which they appear."""
    settings = [run.settings for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if any(values.get(name) != settings[0].get(name) for values in settings)]


def best_run(runs: Sequence[SavedRun]) -> SavedRun | None:
    """Return the run with the best first score of the newest run that has one; None if no run has a score."""
    name = next((next(iter(run.record.score)) for run in runs if run.record.score), "")
    pick = max if metrics.higher_is_better(name) else min
    having = [run for run in runs if isinstance(run.record.score.get(name), int | float)]
    return pick(having, key=lambda run: run.record.score[name], default=None)
