"""Read the runs of a job from the small files in their folders, and make the tables that show these runs.

The runs of a job are the current output, and the earlier outputs that were moved to `runs/`. The command line, the
dashboard and the program that writes report.html read the files from the job's folder on the shared storage. All three
use this module to parse the files and to show their contents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from launcher import metrics
from launcher.errors import make_again_fix
from launcher.io import run_record
from launcher.paths import JobPaths, OutputPaths
from launcher.reporting import text_formats
from launcher.schema import ProgramFile, RunFile, read_fields
from launcher.settings import SCRIPT_RUNTIMES

OUTPUT = OutputPaths(Path("output"))
"""Paths of the current output, below the job's folder."""
JOB = JobPaths(Path(), "")
"""Paths below the job's folder."""
MANIFEST, DATA_FAILED = JOB.manifest.as_posix(), JOB.data_failed.as_posix()
RUNS, CURRENT = "runs", OUTPUT.root.as_posix()
EARLIER = f"{RUNS}/[!.]*"
"""Pattern for the folders of earlier runs. It excludes folders whose name begins with a dot, which `clean` is
removing."""
DIGEST_CHARACTERS = 12
"""At most this many characters of a digest are shown, because users only compare digests."""
Damage = dict[str, str]
"""Path of each damaged file, below the job's folder → what is wrong with the file, and the fix."""
Shape = TypeVar("Shape")
Passes = Sequence[Mapping[str, Any]]
"""A pass table (`launcher.metrics.pass_table`): one row for each pass; passes count from 0."""
_SPEED = {
    "samples": lambda value: f"{value:,}",
    "seconds": lambda value: f"{value:.1f}",
    "samples_per_second": text_formats.rate,
}


def _describe_damage(name: str, why: str) -> str:
    """Return the text for the file `name` in `Damage`: `why` (its path and what is wrong with it) and a fix."""
    fix = "Fix: restore it from a backup of the storage; without one, delete it, so that it counts as absent."
    if name in (MANIFEST, DATA_FAILED):
        fix = make_again_fix(name)
    elif name.endswith(OUTPUT.run_json.name):
        fix = f"Fix: restore it, or its copy {OUTPUT.run_copy.name}, from a backup of the storage."
    return f"{why} {fix}"


class FoundFiles:
    """Parses files of the storage, and records in `damage` which of them are damaged.

    A damaged file that has an intact copy is not recorded.
    """

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        """Create the object; each file is parsed when a method needs it.

        `contents` maps the path of each file, below the job's folder, to the content of the file.
        """
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

    def metrics(self, output: OutputPaths) -> list[metrics.MetricsRow]:
        """Return the intact rows of an output's metrics.csv."""
        name = output.metrics_csv.as_posix()
        content = self.contents.get(name, b"")
        if name in self.contents and (why := metrics.find_damage(content)):
            self.damage[name] = _describe_damage(name, f"{name} is damaged: {why}. The other rows are shown.")
        return metrics.parse_metrics(content.decode(errors="replace"))


@dataclass(frozen=True)
class SavedRun:
    """A run of a job, as `runs`, `compare`, `results` and the pages show it."""

    folder: str
    """The run's folder below the job's: `output`, or `runs/<name>`."""
    record: RunFile
    """run.json, with all options of the program if program.json has them."""
    passes: Passes = ()
    is_locked: bool = False
    """Whether the folder has a run.lock, so that a process may write there."""
    program: Mapping[str, str] = field(default_factory=dict)
    """The text of the program's files by name; empty if it was not kept."""
    damage: Damage = field(default_factory=dict)
    """What is wrong with the run's damaged files; empty if none is damaged."""

    @property
    def is_unknown(self) -> bool:
        """Whether the run record is damaged, so that state, age, settings and score of the run are unknown."""
        return (PurePosixPath(self.folder) / OUTPUT.run_json.name).as_posix() in self.damage

    @property
    def state(self) -> str:
        """The state in the run record; `damaged` if the run record is damaged, `unknown` if it is absent."""
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
        """The settings in which the run may differ from other runs: name to show → value.

        The digests of the program and of the prepared data are shortened. `passes` is the number of finished passes.
        The program's options are included, each with the name `--option`. They come from `record.options`, or, if that
        is empty, from the arguments in the fingerprint.
        """
        kept, content = dict(self.record.fingerprint), self.record.content
        if kept.get("runtime") in SCRIPT_RUNTIMES:  # a script itself decides about these
            kept = {key: value for key, value in kept.items() if key not in ("mode", "portsNum")}
        for key in ("program", "dataDigest"):
            kept[key] = str(kept.get(key, ""))[:DIGEST_CHARACTERS]
        if self.record.config:
            kept["program"] = f"{self.record.config}, sha256 {kept['program']}"
        given = (argument.lstrip("-").partition("=") for argument in kept.pop("args", []))
        options = self.record.options or {key.replace("-", "_"): value for key, _, value in given}
        kept |= {key: content[key] for key in ("keepBest", "patience") if key in content}
        return {**kept, **{f"--{key}": value for key, value in options.items()}, "passes": len(self.passes)}

    @property
    def best(self) -> dict[str, Any]:
        """The run's best pass, as `launcher.metrics.best_pass` returns it."""
        return metrics.best_pass(self.record.content, self.passes)

    @property
    def pod_hours(self) -> float | None:
        """Hours of the run, multiplied by the number of its training pods; None if unknown.

        For an elastic run, this is the largest number of training pods that the run can have. It serves to estimate the
        cost of the nodes.
        """
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


def run_patterns(*folders: str) -> list[str]:
    """Return the paths, below the job's folder, of the files from which `parse_runs` reads the runs in `folders`.

    A folder may be a pattern such as EARLIER; then the paths are patterns, too.
    """
    kept = (OUTPUT.run_json, OUTPUT.metrics_csv, OUTPUT.lock, OUTPUT.program_json, OUTPUT.run_copy)
    return [f"{folder}/{path.name}" for folder in folders for path in kept]


def parse_runs(contents: Mapping[str, bytes]) -> list[SavedRun]:
    """Return the runs that have a file in `contents`: the current run first, then the others, the newest first.

    `contents` maps the path of each file, below the job's folder, to the content of the file.
    """
    runs = []
    for folder in sorted({str(PurePosixPath(name).parent) for name in contents}):
        output = OutputPaths(Path(folder))
        found = FoundFiles(contents)
        program, record = found.json(ProgramFile, output.program_json) or {}, found.run(output)
        content = {**(record.content if record else {}), "options": dict(program.get("options") or {})}
        runs.append(
            SavedRun(
                folder=folder,
                record=read_fields(RunFile, content),
                passes=metrics.pass_table(found.metrics(output)),
                is_locked=output.lock.as_posix() in contents,
                program=program.get("files") or {},
                damage=found.damage,
            )
        )
    return sorted(runs, key=lambda run: (run.folder == CURRENT, run.record.started), reverse=True)


def differing_settings(runs: Sequence[SavedRun]) -> list[str]:
    """Return the names of the settings that differ between the runs, in the order of their first appearance."""
    settings = [run.settings for run in runs]
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if any(values.get(name) != settings[0].get(name) for values in settings)]


def run_rows(found: Sequence[SavedRun]) -> tuple[list[str], list[list[str]]]:
    """Return (names of the columns, a row for each run) of a table of runs.

    The table has a column for each setting that differs between the runs. The name of a column with numbers begins with
    `>`.
    """
    keys = [key for key in differing_settings(found) if key != "passes"]
    columns = ["run", "state", "started", ">duration", ">pod hours", ">passes", ">restarts", "score", *keys]
    rows = []
    for run in found:
        scores = (text_formats.scores(run.record.score), text_formats.best_pass(run.best))
        rows.append(
            [
                run.name + (" (current)" if run.folder == CURRENT else ""),
                run.state,
                text_formats.utc_time(run.record.started or None),
                text_formats.duration(run.seconds),
                "-" if run.pod_hours is None else f"{run.pod_hours:.2f}",
                str(len(run.passes)),
                str(len(run.record.restarts)),
                ", ".join(filter(None, scores)) or "-",
                *(str(run.settings.get(key, "-")) for key in keys),
            ]
        )
    return columns, rows


def score_columns(*runs: Passes) -> list[str]:
    """Return the keys of the training loss and of all scores that at least one pass of `runs` has."""
    scores = {key for passes in runs for row in passes for key in row if key.startswith(metrics.TEST)}
    return ["train_loss", *sorted(scores)]


def pass_rows(runs: Mapping[str, Passes]) -> tuple[list[str], list[list[str]]]:
    """Return (names of the columns, a row for each pass) of a table with loss and scores; for a single run also speed.

    `runs` maps the name of each run to its passes. For several runs, the columns of one loss or score stand side by
    side, with the name of the run. The name of a column with numbers begins with `>`.
    """
    single = len(runs) == 1
    keys = [*(_SPEED if single else ()), *score_columns(*runs.values())]
    columns = [">pass", *(f">{key}" if single else f">{key} {name}" for key in keys for name in runs)]
    rows = []
    for number in range(max(map(len, runs.values()), default=0)):
        cells = []
        for key in keys:
            for passes in runs.values():
                value = passes[number].get(key) if number < len(passes) else None
                cells.append(_SPEED.get(key, text_formats.number)(value))
        rows.append([str(number + 1), *cells])
    return columns, rows
