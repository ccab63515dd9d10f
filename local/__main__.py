"""Command line of `local`: tools, cluster, image and demo on one machine. `local/bootstrap.py` starts it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from local import (
    console,
    debian_packages,
    example_data,
    go_tools,
    launcher_image,
    local_stack,
    try_example,
)
from local import demo as steps
from local.cluster import cluster_lifecycle
from local.cluster.daemon_configs import plan_nodes
from local.external_commands import LocalError, exit_on_sigterm
from local.paths import CLONE, CONTEXT, KUBECONFIG, SOURCES

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Build the tools and run a Kubernetes cluster of one to five nodes on this machine. Needs root; "
    "never uses $KUBECONFIG or ~/.kube/config.",
)
Nodes = Annotated[int, typer.Option(envvar="NODES", help="Number of nodes of the cluster, 1 to 5.")]
Config = Annotated[str, typer.Option(help="Example: quick_start, recommendation, ctr or text.")]
Runtime = Annotated[
    str, typer.Option(help="fleet: PaddlePaddle 2.6.2 with parameter servers; collective: a current one.")
]
Wipe = Annotated[bool, typer.Option(help="Also delete etcd's data, images, keys and the Pulumi state.")]
Target = Annotated[
    Path, typer.Option(help="Target folder; default: sources/ in the storage of the stack local.")
]
Kubeconfig = Annotated[
    str, typer.Option(help="Kubeconfig of your own cluster, which is used instead of the local one.")
]
Context = Annotated[str, typer.Option(help="Context in that kubeconfig.")]
Image = Annotated[str, typer.Option(help="Launcher image in a registry that your cluster can reach.")]


@app.command()
def tools() -> None:
    """Install missing Debian packages and build missing tools, including those for tests and documentation."""
    debian_packages.ensure_packages(tests=True)
    go_tools.ensure_tools(go_tools.tools_to_build(tests=True))
    console.success("all tools are installed")


@app.command()
def up(nodes: Nodes = 3) -> None:
    """Start the local cluster; a running one is restarted only if its settings or programs have changed."""
    plan_nodes(nodes)  # before anything is built
    cluster_lifecycle.require_root()
    debian_packages.ensure_packages()
    go_tools.ensure_tools(go_tools.tools_to_build())
    steps.start_cluster(nodes)
    console.info(
        f"kubeconfig {KUBECONFIG}, context {CONTEXT}. NetworkPolicy objects are accepted but not enforced."
    )


@app.command()
def down(wipe: Wipe = False) -> None:
    """Stop the local cluster and undo its changes to this machine; data on the shared storage stays."""
    with console.timed_step("stopping the local cluster"):
        cluster_lifecycle.stop_cluster(wipe)


@app.command()
def status() -> None:
    """Show the state of each daemon and node, and of the training."""
    lines = cluster_lifecycle.describe_status()
    if not lines:
        console.info("the local cluster is not running; `make cluster` or `make demo` starts it")
        return
    for name, text in lines:
        (console.info if text in ("Ready", "running") else console.error)(f"{name}: {text}")
    env = {**os.environ, **local_stack.tool_environment(), "KUBECONFIG": str(KUBECONFIG)}
    subprocess.run([sys.executable, "-m", "launcher", "status"], cwd=CLONE, env=env, check=False)


@app.command()
def image(runtime: Runtime = "fleet") -> None:
    """Build the launcher image of a runtime and import it into the local cluster if that is running."""
    if runtime not in launcher_image.RUNTIMES:
        raise LocalError(
            f"RUNTIME={runtime}: images exist only for {', '.join(launcher_image.RUNTIMES)} (runtime v1 runs your "
            "own image). Fix: use make image RUNTIME=collective"
        )
    debian_packages.ensure_packages()
    if cluster_lifecycle.running_nodes():
        console.success(cluster_lifecycle.import_launcher_image(runtime))
    else:
        console.success(launcher_image.ensure_image(runtime)[0])


@app.command()
def sources(to: Target = SOURCES) -> None:
    """Download the examples' data (the rows of ctr are generated, see docs/how-to/clusters.md)."""
    example_data.ensure_wheels(to)
    console.success(f"the examples' data is in {to}")


@app.command()
def demo(
    config: Config = "",
    nodes: Nodes = 3,
    cluster_kubeconfig: Kubeconfig = "",
    context: Context = "",
    image: Image = "",
) -> None:
    """Set up all that is missing, train an example (by default the one in Pulumi.local.yaml), print its results."""
    plan_nodes(nodes)
    cluster_lifecycle.require_root()
    where = steps.resolve_target(cluster_kubeconfig or None, context or None, image or None)
    steps.run_demo(config, nodes, where, image or None)


@app.command("try")
def try_(config: Config = "quick_start") -> None:
    """Train an example on loopback: no root, no Kubernetes, only the Python environment."""
    try_example.run(config)


@app.command()
def env() -> None:
    """Print shell exports with which pulumi, helm and kubectl work on the stack `local`.

    Without root, which the stack needs, only PATH: enough for commands such as `python -m launcher try`.
    """
    try:
        local_stack.ensure_stack_files()
    except PermissionError:
        typer.echo(f"export PATH={shlex.quote(local_stack.tool_environment()['PATH'])}")
        return
    for key, value in local_stack.tool_environment().items():
        typer.echo(f"export {key}={shlex.quote(value)}")


@app.command()
def path() -> None:
    """Print a PATH that begins with the tools and the Python environment; tests run with it."""
    typer.echo(local_stack.tool_environment()["PATH"])


INTERRUPTED = 130
"""Exit code of typer after SIGINT (Ctrl-C)."""


def main() -> None:
    """Run one command; print a LocalError as a message and exit with code 1."""
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    exit_on_sigterm()
    try:
        app(prog_name="python -m local")
    except LocalError as problem:
        console.error(str(problem))
        sys.exit(1)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            console.error(
                "interrupted; `make demo` continues from here, `make down` stops and removes everything"
            )
        raise


if __name__ == "__main__":
    main()
