"""`make demo`: from a bare machine to a trained model, one step after the other, what can be side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import LauncherError
from launcher.files import read_json
from launcher.programs.ctr import planted, scores
from local import data, say, served, stack, tryout
from local.cluster import lifecycle
from local.errors import LocalError
from local.files import need_space
from local.images import launcher
from local.paths import CLONE, CONTEXT, KUBECONFIG, SHARED, STATE
from local.run import tail
from local.toolchain import build, debian, own
from local.toolchain.tools import Tool, tool

RESULTS_MINUTES = 60


@dataclass(frozen=True)
class Target:
    """The cluster that a demo runs on; `own` when it is the one that `local` starts."""

    kubeconfig: Path
    context: str
    own: bool


def target(kubeconfig: str | None, context: str | None, image: str | None) -> Target:
    """Which cluster is meant: the named one, else the one of the stack's file.

    Raises:
        LocalError: a named kubeconfig that is not there, has no such context, or comes without an image.
    """
    kept: dict[str, Any] = {} if kubeconfig else stack.settings().get("kubeconfig") or {}
    if not kubeconfig:
        if context:
            raise LocalError(
                f"CONTEXT={context} without CLUSTER_KUBECONFIG: a context is looked up in the file that "
                "you name; "
                "$KUBECONFIG and ~/.kube/config are never used. Add CLUSTER_KUBECONFIG=FILE."
            )
        if (kept.get("path"), kept.get("context")) == (str(KUBECONFIG), CONTEXT):
            return Target(KUBECONFIG, CONTEXT, own=True)
    named = kubeconfig or kept.get("path") or ""
    file = Path(named).expanduser().absolute()
    try:
        content = yaml.safe_load(file.read_text())
        known = [entry["name"] for entry in content["contexts"]]
    except (OSError, yaml.YAMLError, TypeError, KeyError) as problem:
        raise LocalError(f"CLUSTER_KUBECONFIG={named} cannot be read as a kubeconfig: {problem}") from None
    chosen = context or kept.get("context") or content.get("current-context") or ""
    if chosen not in known:
        raise LocalError(
            f"CONTEXT={chosen or '(none)'} is not in {file}, which has {', '.join(known) or 'none'}."
        )
    if file == KUBECONFIG and chosen == CONTEXT:
        return Target(file, chosen, own=True)
    if kubeconfig and not image:
        raise LocalError(
            "A cluster of your own needs the launcher's image where its nodes can fetch it: build it with "
            "`docker build launcher`, push it, and add IMAGE=REGISTRY/NAME@sha256:…"
        )
    return Target(file, chosen, own=False)


def demo(config: str, nodes: int, where: Target, image: str | None) -> None:
    """Run the example `config` to its results; empty: the one that the stack's file names."""
    if config:
        stack.check_config(config)
    chosen: dict[str, str | list[str]] = (
        {"valuesFiles": [f"{stack.EXAMPLES}/{config}.yaml"]} if config else {}
    )
    config = config or stack.example()
    STATE.mkdir(parents=True, exist_ok=True)
    need_space(STATE, 3, "The demo")
    fitting = own.told()
    tools = build.wanted(cluster=where.own, fitting=fitting)
    if where.own:
        debian.ensure()
        _prepare(nodes, config, tools)
    else:
        build.ensure(tools)
        say.note(
            f"cluster {where.context} of {where.kubeconfig}: its own storage must hold what the example names"
        )
    stack.refresh()
    chosen |= {"kubeconfig.path": str(where.kubeconfig), "kubeconfig.context": where.context}
    if image or (where.own and stack.settings()["kubeconfig"].get("path") != str(where.kubeconfig)):
        chosen["image"] = image or f"{launcher.REPOSITORY}:{{launcher}}"
    env = {**os.environ, **stack.environment(fitting)}
    example = CLONE / stack.EXAMPLES / f"{config}.yaml"
    job = SHARED / str(yaml.safe_load(example.read_text())["jobName"])
    before = finished(job) if where.own else None
    with say.step("pulumi up -s local"):
        stack.ensure(env, own_pulumi="pulumi" in fitting)
        stack.choose(env, chosen)
        _pulumi_up(env)
    _launcher(env, where, "wait", "--timeout", str(RESULTS_MINUTES * 60))
    say.done("the training is complete")
    _launcher(env, where, "results")
    if where.own:
        say.done(f"model:  {job / 'output' / 'model'}")
        say.done(f"curve:  {job / 'output' / 'curve.png'}")
        served.show(job)
        if config == "ctr":
            _beside_the_limit(job)
        if before is not None and finished(job) == before:
            say.note(
                f"nothing was trained: all passes of job {job.name} were done before, and this is their "
                f"result. To train again: add the line `fresh: again` (any new text) to "
                f"{example.relative_to(CLONE)}, and make demo"
            )
    say.note('go on with plain pulumi, helm and kubectl: eval "$(make -s env)"; stop it all with: make down')


def finished(job: Path) -> float | None:
    """Return when the run in this job's output was complete, in unix seconds; None if it is not."""
    try:
        run = read_json(job / "output" / "run.json") or {}
    except LauncherError:  # the training itself judges its files
        return None
    return run.get("finished") if run.get("state") == "complete" else None


def _prepare(nodes: int, config: str, tools: list[Tool]) -> None:
    """Tools, cluster, image and data side by side; each begins as soon as what it needs is there.

    Building tools takes minutes. So the example is first trained right here, as `make try` does.
    """
    cold = not all(one.built() for one in tools)
    with ThreadPoolExecutor() as pool:
        image = pool.submit(launcher.ensure_archive)
        work: list[Future[Any]] = [image, pool.submit(data.ensure_example, config)]
        if cold:
            say.note(f"meanwhile {config} is trained here without Kubernetes, as `make try` does")
            work.append(pool.submit(tryout.run, config, live=False))
        with build.building(tools) as make:
            make([one for one in tools if one.name in build.CLUSTER])
            for done in work:
                if done.done():
                    done.result()  # what has failed is told now and not when the rest is built
            work.append(pool.submit(_start, nodes, image))
            make(tools)
        for each in work:
            each.result()


def _start(nodes: int, image: Future[tuple[str, Path]]) -> None:
    start_cluster(nodes)
    image.result()
    launcher.ensure_imported()


def start_cluster(nodes: int) -> None:
    """The local cluster, started or mended; tools and packages are there."""
    with say.step(f"Kubernetes of {nodes} nodes"):
        changed = lifecycle.up(nodes, tool("kubernetes").folder, tool("coredns").folder)
    if not changed:
        say.note("it ran already, and nothing was changed")


def _beside_the_limit(job: Path) -> None:
    """The model's AUC beside that of the one that made the rows, and what that one says of the row asked."""
    chances, clicks = planted.limit(job / "test.txt")
    score = json.loads((job / "output" / "model" / "score.json").read_text("utf-8"))
    say.done(
        f"AUC:    {score['auc']:.4f} on {len(clicks):,} test rows; the best possible is "
        f"{scores.metrics(chances, clicks)['auc']:.4f}"
    )
    say.done(f"truth:  the first of them is clicked with a chance of {chances[0, 0]:.1%}")


def _pulumi_up(env: dict[str, str]) -> None:
    # --refresh: a cluster that was wiped, or a release that was upgraded by hand, is seen and mended.
    command = [
        "pulumi",
        "up",
        "--stack",
        stack.STACK,
        "--yes",
        "--skip-preview",
        "--refresh",
        "--non-interactive",
        "--color",
        "never",
    ]
    ended = subprocess.run(
        command,
        cwd=CLONE,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    if ended.returncode:
        raise LocalError(
            f"`pulumi up -s local` ended with {ended.returncode}:\n{tail(ended.stdout + ended.stderr, 60)}"
        )


def _launcher(env: dict[str, str], where: Target, command: str, *words: str) -> None:
    """One of the person's commands, with its own output."""
    argv = [sys.executable, "-m", "launcher", command]
    argv += ["--kubeconfig", str(where.kubeconfig), "--context", where.context, *words]
    ended = subprocess.run(argv, cwd=CLONE, env={**env, "PYTHONPATH": str(CLONE)}, check=False)
    if ended.returncode:
        raise LocalError(
            f"`python -m launcher {command}` ended with {ended.returncode}; its message is above."
        )
