"""`python -m local <command>`: tools, cluster, image and demo on one machine. `local/bootstrap.py` starts
it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from local import data, say, stack, tryout
from local import demo as steps
from local.cluster import lifecycle
from local.cluster.plan import nodes as plan
from local.errors import LocalError
from local.images import launcher
from local.paths import CLONE, CONTEXT, KUBECONFIG, SOURCES
from local.toolchain import build, debian

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Tools and a Kubernetes of one to five nodes on this one machine. Needs root; never touches "
    "$KUBECONFIG or ~/.kube/config.",
)
Nodes = Annotated[int, typer.Option(envvar="NODES", help="Nodes of the cluster, 1 to 5.")]


@app.command()
def tools(
    tests: Annotated[bool, typer.Option(help="Also what the chart's tests and documents need.")] = True,
) -> None:
    """Install missing Debian packages and build missing tools."""
    debian.ensure(tests)
    build.tools(tests=tests)
    say.done("all tools are there")


@app.command()
def up(nodes: Nodes = 3) -> None:
    """Start the local cluster, or mend it; a running one is left alone."""
    plan(nodes)  # a wrong number is said before anything is built
    debian.ensure()
    build.tools()
    steps.start_cluster(nodes)
    say.note(
        f"kubeconfig {KUBECONFIG}, context {CONTEXT}. NetworkPolicy objects are kept but not enforced here."
    )


@app.command()
def down(wipe: Annotated[bool, typer.Option(help="Also drop etcd's data, images and keys.")] = False) -> None:
    """Stop the local cluster and undo what it did to this machine; data on the shared storage stays."""
    with say.step("stopping the local cluster"):
        left = lifecycle.down(wipe)
    _report(left)


@app.command()
def residue() -> None:
    """List what of the local cluster runs, is mounted or is routed on this machine; exit 1 if anything is."""
    _report(lifecycle.leftovers())


def _report(left: list[str]) -> None:
    say.note(
        "looked for processes, cgroups, mounts, network namespaces, links, routes and iptables rules of ours"
    )
    for line in left:
        say.error(line)
    if left:
        raise typer.Exit(1)
    say.done("nothing is left")


@app.command()
def status() -> None:
    """What each daemon and node does, and the training on it."""
    lines = lifecycle.status()
    if not lines:
        say.note("the local cluster does not run; `make cluster` or `make demo` starts it")
        return
    for name, text in lines:
        (say.note if text == "Ready" or text.startswith("runs") else say.error)(f"{name}: {text}")
    if lifecycle.running_nodes():
        env = {**os.environ, **stack.environment({}), "KUBECONFIG": str(KUBECONFIG)}
        subprocess.run([sys.executable, "-m", "launcher", "status"], cwd=CLONE, env=env, check=False)


@app.command()
def image() -> None:
    """Build the launcher image, and import it into the cluster if that runs."""
    debian.ensure()
    name = launcher.ensure_imported() if lifecycle.running_nodes() else launcher.ensure_archive()[0]
    say.done(name)


@app.command()
def sources(
    to: Annotated[
        Path, typer.Option(help="Folder, by default sources/ of the stack local's storage.")
    ] = SOURCES,
) -> None:
    """Fetch the examples' data."""
    data.ensure(to)
    say.done(f"the examples' data is in {to}")


@app.command()
def demo(
    config: Annotated[
        str, typer.Option(help="An example: quick_start, recommendation, ctr.")
    ] = "quick_start",
    nodes: Nodes = 3,
    cluster_kubeconfig: Annotated[
        str, typer.Option(help="A cluster of your own, instead of the local one.")
    ] = "",
    context: Annotated[str, typer.Option(help="Its context.")] = "",
    image: Annotated[str, typer.Option(help="The launcher image, where your cluster finds it.")] = "",
) -> None:
    """Train an example from nothing to its results."""
    plan(nodes)
    where = steps.target(cluster_kubeconfig or None, context or None, image or None)
    steps.demo(config, nodes, where, image or None)


@app.command("try")
def try_(
    config: Annotated[str, typer.Option(help="An example: quick_start or recommendation.")] = "quick_start",
) -> None:
    """Train an example at once on loopback: no root, no Kubernetes, nothing but the Python environment."""
    tryout.run(config)


@app.command()
def env() -> None:
    """Print exports with which plain pulumi, helm and kubectl work on the stack `local`."""
    stack.refresh()
    for key, value in stack.environment().items():
        typer.echo(f"export {key}={shlex.quote(value)}")


@app.command()
def path() -> None:
    """Print PATH with the tools and the Python environment first, and nothing else: what tests run with."""
    typer.echo(stack.environment()["PATH"])


def main() -> None:
    """Run one command; a mistake that the person can mend is one message and exit code 1."""
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    try:
        app(prog_name="python -m local")
    except LocalError as problem:
        say.error(str(problem))
        sys.exit(1)
    except KeyboardInterrupt:
        say.error("stopped; `make demo` goes on from here, `make down` undoes it")
        sys.exit(130)


if __name__ == "__main__":
    main()
