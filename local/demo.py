"""`make demo`: create tools, local cluster, image and data, train an example, and print the results."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import LauncherError
from launcher.io.files import read_json
from local import (
    console,
    debian_packages,
    example_data,
    go_tools,
    launcher_image,
    local_stack,
    try_example,
)
from local.cluster import cluster_lifecycle
from local.external_commands import LocalError, indent_last_lines
from local.files_and_locks import require_free_space
from local.go_tools import Tool
from local.paths import CLONE, CONTEXT, KUBECONFIG, SHARED, STATE

RESULTS_MINUTES = 60


@dataclass(frozen=True)
class Target:
    """The cluster that a demo runs on. `is_local` is false if the user specified another cluster than the local one."""

    kubeconfig: Path
    context: str
    is_local: bool


def resolve_target(kubeconfig: str | None, context: str | None, image: str | None) -> Target:
    """Return the cluster for the demo.

    Args:
        kubeconfig: path of a kubeconfig of the user. None: use the kubeconfig that the settings in Pulumi.local.yaml
            refer to.
        context: context of the user's kubeconfig. None: the current context of this kubeconfig; without a kubeconfig of
            the user, the context in the settings.
        image: a launcher image that the nodes of the user's cluster can pull.

    Raises:
        LocalError: The kubeconfig is unreadable or lacks the context; the kubeconfig of another cluster than the local
            one was specified without an image; or a context was specified without a kubeconfig.
    """
    kept: dict[str, Any] = {} if kubeconfig else local_stack.read_settings().get("kubeconfig") or {}
    if not kubeconfig:
        if context:
            raise LocalError(
                f"CONTEXT={context} was specified without CLUSTER_KUBECONFIG; $KUBECONFIG and ~/.kube/config are "
                "never used. Fix: add CLUSTER_KUBECONFIG=FILE with the file that contains this context"
            )
        if (kept.get("path"), kept.get("context")) == (str(KUBECONFIG), CONTEXT):
            return Target(KUBECONFIG, CONTEXT, is_local=True)
    named = kubeconfig or kept.get("path") or ""
    file = Path(named).expanduser().absolute()
    try:
        content = yaml.safe_load(file.read_text())
        known = [entry["name"] for entry in content["contexts"]]
    except (OSError, yaml.YAMLError, TypeError, KeyError) as problem:
        raise LocalError(
            f"CLUSTER_KUBECONFIG={named} cannot be read as a kubeconfig: {problem}. Fix: give another file"
        ) from None
    chosen = context or kept.get("context") or content.get("current-context") or ""
    if chosen not in known:
        raise LocalError(
            f"CONTEXT={chosen or '(none)'} is not in {file}. Fix: use one of its contexts: "
            f"{', '.join(known) or 'none'}"
        )
    if file == KUBECONFIG and chosen == CONTEXT:
        return Target(file, chosen, is_local=True)
    if kubeconfig and not image:
        raise LocalError(
            "IMAGE is missing: the nodes of your own cluster pull the launcher image from a registry. Fix: build it "
            "with `docker build launcher`, push it, and add IMAGE=REGISTRY/NAME@sha256:…"
        )
    return Target(file, chosen, is_local=False)


def run_demo(config: str, nodes: int, where: Target, image: str | None) -> None:
    """Train an example in the cluster `where`, and print its results.

    Args:
        config: name of the example; empty: the example that Pulumi.local.yaml refers to.
        nodes: number of nodes of the local cluster.
        where: the cluster.
        image: the launcher image. None: use the image in the settings. On the local cluster, the image that is built
            from this clone for the runtime of the example is used instead if the settings have an image built from this
            clone, or if the settings refer to another cluster.
    """
    chosen: dict[str, str | list[str]] = {}
    if config:
        local_stack.check_example_exists(config)
        chosen["valuesFiles"] = [f"{local_stack.EXAMPLES}/{config}.yaml"]
    else:
        config = local_stack.read_stack_example()
        console.info(
            f"training the example {config}: valuesFiles in {local_stack.settings_file().name} names it. For another "
            f"one: make demo CONFIG=NAME, with one of {', '.join(local_stack.list_examples())}"
        )
    STATE.mkdir(parents=True, exist_ok=True)
    require_free_space(STATE, 3, "The demo")
    tools = go_tools.tools_to_build(cluster=where.is_local)
    if where.is_local:
        debian_packages.ensure_packages()
        _prepare_local_cluster(nodes, config, tools)
    else:
        go_tools.ensure_tools(tools)
        command = (
            f"python -m launcher.programs.ctr.generated_rows make {example_data.PLANTED}"
            if config == "ctr"
            else "python3 local/bootstrap.py sources --to FOLDER"
        )
        console.info(
            f"cluster {where.context} of {where.kubeconfig}: the demo does not upload data to your own cluster. "
            f"Copy the data of the example {config} to sources/ on the cluster's shared storage unless it is there "
            f"(docs/how-to/clusters.md); this creates it: {command}"
        )
    local_stack.ensure_stack_files()
    chosen |= {"kubeconfig.path": str(where.kubeconfig), "kubeconfig.context": where.context}
    settings = local_stack.read_settings()
    if image:
        chosen["image"] = image
    elif where.is_local and (
        settings["kubeconfig"].get("path") != str(where.kubeconfig)
        or settings.get("image") in [launcher_image.image_template(each) for each in launcher_image.RUNTIMES]
    ):
        chosen["image"] = launcher_image.image_template(try_example.example_values(config)["runtime"])
    env = {**os.environ, **local_stack.tool_environment()}
    example = CLONE / local_stack.EXAMPLES / f"{config}.yaml"
    job = SHARED / str(yaml.safe_load(example.read_text())["jobName"])
    before = completion_time(job) if where.is_local else None
    with console.timed_step("pulumi up -s local"):
        local_stack.ensure_stack_exists(env)
        local_stack.write_settings(env, chosen)
        _run_pulumi_up(env)
    _run_launcher(env, where, "wait", "--timeout", str(RESULTS_MINUTES * 60))
    console.success("the training is complete")
    _run_launcher(env, where, "results")
    if where.is_local:
        console.success(f"model:  {job / 'output' / 'model'}")
        console.success(f"curve:  {job / 'output' / 'curve.png'}")
        try_example.print_prediction(config, job)
        if before is not None and completion_time(job) == before:
            console.info(
                f"nothing was trained: job {job.name} had completed all passes before, and these are its "
                f"results. To train again: add the line `startFromScratch: again` (any new text) to "
                f"{example.relative_to(CLONE)} and run make demo"
            )
    console.info(
        'to continue with pulumi, helm and kubectl: eval "$(make -s env)"; to stop everything: make down'
    )


def completion_time(job: Path) -> float | None:
    """Return when the run in the job folder `job` completed, in Unix seconds.

    Return None if the run has not completed, or if its run.json is unreadable.
    """
    try:
        run = read_json(job / "output" / "run.json") or {}
    except LauncherError:  # the training reports unreadable files itself
        return None
    return run.get("finished") if run.get("state") == "complete" else None


def _prepare_local_cluster(nodes: int, config: str, tools: list[Tool]) -> None:
    """Prepare tools, cluster, image and data in parallel. Each step starts as soon as its prerequisites exist."""
    runtime = str(try_example.example_values(config)["runtime"])
    with ThreadPoolExecutor() as pool:
        image = pool.submit(launcher_image.ensure_image, runtime)
        work: list[Future[Any]] = [image, pool.submit(example_data.ensure_example_data, config)]
        with go_tools.tool_builder(tools) as make:
            make([one for one in tools if one.name in go_tools.CLUSTER])
            for done in work:
                if done.done():
                    done.result()  # reports a failure now, not after the remaining tools are built
            work.append(pool.submit(_start_cluster_with_image, nodes, image, runtime))
            make(tools)
        for each in work:
            each.result()


def _start_cluster_with_image(nodes: int, image: Future[tuple[str, Path]], runtime: str) -> None:
    start_cluster(nodes)
    image.result()
    cluster_lifecycle.import_launcher_image(runtime)


def start_cluster(nodes: int) -> None:
    """Start or repair the local cluster; its tools and Debian packages must be installed."""
    with console.timed_step(f"Kubernetes of {nodes} nodes"):
        changed = cluster_lifecycle.start_cluster(nodes)
    if not changed:
        console.info("the local cluster was running already; nothing was changed")


def _run_pulumi_up(env: dict[str, str]) -> None:
    # --refresh detects and repairs a wiped cluster or a release that was upgraded by hand.
    command = ["pulumi", "up", "--stack", local_stack.STACK, "--yes", "--skip-preview", "--refresh"]
    command += ["--non-interactive", "--color", "never"]
    with subprocess.Popen(
        command,
        cwd=CLONE,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=1800)
        except (KeyboardInterrupt, SystemExit):
            # Pulumi has received the signal, too. It saves the state and releases its lock, which would make the next
            # `pulumi up` fail.
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=60)
            raise
        finally:
            child.kill()  # no effect on a process that has exited
    if child.returncode:
        raise LocalError(
            f"`pulumi up -s local` exited with {child.returncode}. Fix: correct the cause in its output, then run "
            f"make demo again:\n{indent_last_lines(output, 60)}"
        )


def _run_launcher(env: dict[str, str], where: Target, command: str, *words: str) -> None:
    """Run a command of the launcher's command line against the cluster and show its output."""
    argv = [sys.executable, "-m", "launcher", command]
    argv += ["--kubeconfig", str(where.kubeconfig), "--context", where.context, *words]
    ended = subprocess.run(argv, cwd=CLONE, env={**env, "PYTHONPATH": str(CLONE)}, check=False)
    if ended.returncode:
        raise LocalError(
            f"`python -m launcher {command}` exited with {ended.returncode}. Fix: correct the cause in its message "
            "above, then run make demo again"
        )
