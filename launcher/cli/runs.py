"""`runs`, `compare`, `clean`: the present output beside those that were moved aside to `runs/`."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from launcher.best import higher_is_better, of_run
from launcher.cli import render
from launcher.cli.problems import UsageError
from launcher.cli.session import OUTPUT, ClusterSession, Session
from launcher.cli.storage import Storage, json_file, run_record, small_files
from launcher.layout import Output
from launcher.reporting import curve, figures

RUNS = "runs"
DIFF_LINES = 100  # of two programs, in a terminal
CURRENT = OUTPUT.root.as_posix()


@dataclass(frozen=True)
class Past:
    """One output: `output`, or `runs/<name>`."""

    folder: str
    run: Mapping[str, Any]
    """run.json, or {}."""
    passes: Sequence[Mapping[str, Any]]
    """`curve.pass_table` of its metrics."""
    locked: bool
    """Whether somebody writes there."""
    program: Mapping[str, str] = field(default_factory=dict)
    """The text of the program's files by name; empty where it was not kept."""

    @property
    def name(self) -> str:
        """As `compare` and `results --run` take it."""
        return self.folder.removeprefix(f"{RUNS}/")

    @property
    def started(self) -> float:
        """Unix seconds; 0 when run.json does not say."""
        return float(self.run.get("started") or 0)

    @property
    def seconds(self) -> float | None:
        """From the start to the end of its last start; None while it runs."""
        ended = self.run.get("finished")
        return float(ended) - self.started if ended else None

    @property
    def settings(self) -> dict[str, Any]:
        """What two runs may differ in, as run.json keeps it. Digests are cut: they are only compared."""
        return figures.settings(self.run, len(self.passes))

    @property
    def best(self) -> dict[str, Any]:
        """`launcher.best.of_run`."""
        return of_run(self.run, self.passes)

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "name": self.name,
            "folder": self.folder,
            "state": self.run.get("state"),
            "started": self.started,
            "seconds": self.seconds,
            "podHours": pod_hours(self),
            "score": self.run.get("score") or {},
            "best": self.best,
            "restarts": len(self.run.get("restarts") or []),
            "settings": self.settings,
            "passes": list(self.passes),
        }


def pod_hours(past: Past) -> float | None:
    """Hours of training pods that it took: what its nodes cost follows from it."""
    trainers = (past.run.get("fingerprint") or {}).get("trainers")
    return None if past.seconds is None or not trainers else int(trainers) * past.seconds / 3600


def load(storage: Storage) -> list[Past]:
    """All outputs of the job, the newest first."""
    kept = (OUTPUT.run_json, OUTPUT.metrics_csv, OUTPUT.lock, OUTPUT.program_json, OUTPUT.run_copy)
    names = [path.name for path in kept]
    found = small_files(storage, [f"{place}/{name}" for place in (CURRENT, f"{RUNS}/*") for name in names])
    folders = sorted({str(PurePosixPath(name).parent) for name in found})
    pasts = []
    for folder in folders:
        rows = curve.parse_metrics(found.get(f"{folder}/{names[1]}", b"").decode(errors="replace"))
        program = json_file(found.get(f"{folder}/{names[3]}")) or {}
        run = figures.with_options(run_record(found, Output(Path(folder))) or {}, program)
        locked = f"{folder}/{names[2]}" in found
        pasts.append(Past(folder, run, curve.pass_table(rows), locked, program.get("files") or {}))
    return sorted(pasts, key=lambda past: (past.folder == CURRENT, past.started), reverse=True)


def find(pasts: Sequence[Past], name: str) -> Past:
    """The output of that name, or of the only name that begins so. Raises UsageError that lists them."""
    wanted = [past for past in pasts if past.name == name] or [
        past for past in pasts if past.name.startswith(name)
    ]
    if len(wanted) == 1:
        return wanted[0]
    listed = ", ".join(past.name for past in pasts) or "none yet"
    why = "means several runs" if wanted else "is no run of this job"
    raise UsageError(f"{name!r} {why}. There are: {listed}.")


def pair(pasts: Sequence[Past], one: str, other: str | None) -> list[Past]:
    """The two to compare: those so named; without `other` the newest one but `one`. Raises UsageError."""
    first = find(pasts, one)
    if other is not None:
        return [first, find(pasts, other)]
    second = next((past for past in pasts if past is not first), None)
    if second is None:
        raise UsageError(f"there is one run only, {first.name}: nothing to compare it with.")
    return [first, second]


def differing(pasts: Sequence[Past]) -> list[str]:
    """The settings that are not the same in all of them, in the order in which they appear.

    Earlier launchers kept no defaults: an option that such a run does not have counts as the same.
    """
    settings = [past.settings for past in pasts]
    defaults = [bool(past.run.get("options")) for past in pasts]

    def differs(key: str) -> bool:
        told = [
            values.get(key)
            for values, known in zip(settings, defaults, strict=True)
            if key in values or known or not (any(defaults) and key.startswith("--"))
        ]
        return any(value != told[0] for value in told)

    return [key for key in dict.fromkeys(key for values in settings for key in values) if differs(key)]


def program_diff(one: Past, other: Past) -> list[str]:
    """The lines of a unified diff between the two programs; one line that says so where it is not known."""
    if one.settings.get("program") == other.settings.get("program"):
        return []
    lines: list[str] = []
    for name in sorted({*one.program, *other.program} if one.program and other.program else ()):
        old, new = (past.program.get(name, "").splitlines() for past in (one, other))
        lines += difflib.unified_diff(old, new, f"{one.name}/{name}", f"{other.name}/{name}", lineterm="")
    return lines or ["the programs differ, but the text in which they do was not kept"]


def best(pasts: Sequence[Past], by: str) -> Past | None:
    """Return the run with the best score `by`, "" for the first one of the newest; None: no run has a score.

    Raises UsageError for a score that no run has.
    """
    scored = [past.run["score"] for past in pasts if past.run.get("score")]
    name = by or next((next(iter(score)) for score in scored), "")
    those = [past for past in pasts if isinstance((past.run.get("score") or {}).get(name), int | float)]
    if by and not those:
        known = ", ".join(dict.fromkeys(key for score in scored for key in score)) or "none"
        raise UsageError(f"--by {by}: no run has such a score. There are: {known}.")
    more = higher_is_better(name)
    return (max if more else min)(those, key=lambda past: past.run["score"][name], default=None)


def unused(
    pasts: Sequence[Past],
    keep: int,
    older_than_days: float,
    used: Iterable[str],
    *,
    now: float | None = None,
    best: Past | None = None,
) -> tuple[list[Past], list[tuple[Past, str]]]:
    """(what may go, what must stay and why), of `runs/` only; `used` are names that something reads."""
    now = time.time() if now is None else now
    taken = set(used)
    current = next((past for past in pasts if past.folder == CURRENT), None)
    first = str(((current.run.get("fingerprint") or {}) if current else {}).get("initFrom") or "")
    going, staying = [], []
    aside = [past for past in pasts if past.folder != CURRENT]
    for place, past in enumerate(aside):
        age = (now - float(past.run.get("finished") or past.started)) / 86400
        if past.locked:
            staying.append((past, "a run writes there (run.lock)"))
        elif past.name in taken:
            staying.append((past, "a pod reads it"))
        elif past.folder in first:
            staying.append((past, "the present run began with its model (training.initFrom)"))
        elif past is best:
            staying.append((past, "the best one (--keep-best)"))
        elif place < keep:
            staying.append((past, f"one of the newest {keep} (--keep)"))
        elif age < older_than_days:
            staying.append((past, f"{age:.1f} days old, less than {older_than_days:g} (--older-than)"))
        else:
            going.append(past)
    return going, staying


def live_pods(session: Session) -> list[tuple[str, str]]:
    """Return (its name and namespace, its spec as JSON) of each pod of the cluster that waits or runs.

    Those of namespaces that this user may not list are not seen. A folder on this machine (`--path`) has no
    pods to ask.
    """
    if not isinstance(session, ClusterSession):
        return []
    return [
        (
            f"{pod['metadata']['name']} in namespace {pod['metadata'].get('namespace')}",
            json.dumps(pod.get("spec") or {}),
        )
        for pod in session.cluster.items_everywhere("pod", "see which pods use the storage")
        if (pod.get("status") or {}).get("phase") in ("Pending", "Running")
    ]


def read_by_pods(session: Session, pasts: Sequence[Past]) -> set[str]:
    """Names of runs that a pod was given, in an argument, a variable or a mount's path."""
    specs = [spec for _, spec in live_pods(session)]
    return {
        past.name for past in pasts if any(f"{past.folder}/" in s or f'{past.folder}"' in s for s in specs)
    }


def runs_table(pasts: Sequence[Past]) -> RenderableType:
    """One line a run; settings are shown where they are not the same in all."""
    keys = [key for key in differing(pasts) if key != "passes"]
    columns = ["run", "state", "began", ">training", ">pod hours", ">passes", ">restarts", "score", *keys]
    rows: list[list[RenderableType]] = []
    for past in pasts:
        hours = pod_hours(past)
        rows.append(
            [
                past.name + (" (present)" if past.folder == CURRENT else ""),
                str(past.run.get("state") or "unknown"),
                figures.at_time(past.started or None),
                figures.duration(past.seconds),
                "-" if hours is None else f"{hours:.2f}",
                str(len(past.passes)),
                str(len(past.run.get("restarts") or [])),
                ", ".join(
                    filter(None, (figures.scores(past.run.get("score") or {}), figures.best(past.best)))
                )
                or "-",
                *(Text(str(past.settings.get(key, "-"))) for key in keys),
            ]
        )
    return render.table(columns, rows)


def comparison(one: Past, other: Past) -> RenderableType:
    """Settings that differ, and loss and scores pass by pass, side by side."""
    keys = differing([one, other])
    settings = render.table(
        ["setting", one.name, other.name],
        [[key, *(Text(str(past.settings.get(key, "-"))) for past in (one, other))] for key in keys],
    )
    names = sorted(
        {key for past in (one, other) for row in past.passes for key in row if key.startswith("test_")}
    )
    shown = ["train_loss", *names]
    rows = []
    for number in range(max(len(one.passes), len(other.passes))):
        cells = []
        for key in shown:
            for past in (one, other):
                row = past.passes[number] if number < len(past.passes) else {}
                cells.append(figures.number(row.get(key)))
        rows.append([str(number + 1), *cells])
    columns = [">pass", *(f">{key} {past.name}" for key in shown for past in (one, other))]
    words = [] if keys else [Text("the settings are the same")]
    parts = [settings] if keys else words
    lines = [
        Text(f"{key} of {past.name}: {render.spark([float(row[key]) for row in past.passes if key in row])}")
        for key in shown
        for past in (one, other)
    ]
    lines += [Text(figures.best(past.best) + f" in {past.name}") for past in (one, other) if past.best]
    diff = program_diff(one, other)
    hidden = [f"{len(diff) - DIFF_LINES} more lines: -o json has all"] if len(diff) > DIFF_LINES else []
    lines += map(Text, [*diff[:DIFF_LINES], *hidden])
    return Group(*parts, render.table(columns, rows), *lines)
