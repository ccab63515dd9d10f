"""The whole cluster: `up`, `down`, `status` and what is left over.

`up` ensures, from the ground up: network → containerds → etcd → API server → the rest → nodes ready. Each
step leaves alone what already is as it should be, so a second start is a no-op and a start after a crash
mends what is broken. etcd's data and the nodes' images stay between runs, as on machines that are switched
off; `down --wipe` drops them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local.cluster import certs, configs, kernel, network, node, processes
from local.cluster.api import Api, etcd_ready
from local.cluster.plan import BRIDGE_ADDRESS, Node, every_node, nodes
from local.errors import LocalError
from local.files import locked, need_space, write_whole
from local.images import archive
from local.paths import EKS_TOKEN, KUBECONFIG, PASSPHRASE, POD_UID, SHARED, SOURCES, STATE, cache

# In the order in which they end: an API server whose etcd went first takes up to a minute, and keeps its
# port.
CONTROL_PLANE = ("coredns", "scheduler", "controller-manager", "apiserver", "etcd")
_LOCK = STATE / "lock"
_PLAN = STATE / "plan.json"


def lock() -> contextlib.AbstractContextManager[None]:
    """The lock that `up`, `down` and imports hold."""
    return locked(_LOCK, "the local cluster")


def _need_root() -> None:
    if os.geteuid() != 0:
        raise LocalError(
            f"The local cluster needs root (user id 0, not {os.geteuid()}): it makes network namespaces "
            "and mounts. "
            "Run it as root, or use a cluster of your own: make demo CLUSTER_KUBECONFIG=FILE CONTEXT=NAME."
        )


def _settings() -> str:
    """What `up` promises, as kept in plan.json: if it differs from the last run, daemons start anew."""
    return (STATE / "plan.json").read_text() if _PLAN.exists() else ""


def running_nodes() -> tuple[Node, ...]:
    """The nodes of the last `up`; empty when there was none."""
    try:
        return nodes(json.loads(_PLAN.read_text())["nodes"])
    except (FileNotFoundError, ValueError, KeyError):
        return ()


def whole(wanted: tuple[Node, ...]) -> bool:
    """Whether exactly this cluster runs already: daemons, networks and an API server that says ready."""
    names = [*CONTROL_PLANE, *(d for n in wanted for d in node.daemons(n))]
    return (
        running_nodes() == wanted
        and all(processes.record(name) for name in names)
        and all(network.node_whole(n) for n in wanted)
        and Api().ready()
        and not Api().unready([n.name for n in wanted], since=0)
    )


def up(count: int, kubernetes: Path, coredns: Path) -> bool:
    """Start, or mend, a cluster of `count` nodes; False when it already ran as wished.

    Raises:
        LocalError: not root, no space, taken ports or subnets, or a daemon that did not become ready.
    """
    _need_root()
    wanted = nodes(count)
    with lock():
        commands = _commands(kubernetes, coredns)
        promise = json.dumps({"nodes": count, "control plane": commands}) + "\n"
        if _settings() == promise and whole(wanted):
            return False
        need_space(STATE, 3, "The local cluster")
        _begin(wanted, promise)
        began = int(time.time())
        with ThreadPoolExecutor(len(wanted) + 1) as pool:
            runtimes = [pool.submit(node.ensure_runtime, n, _pause()) for n in wanted]
            plane = pool.submit(_control_plane, commands)
            for future in (plane, *runtimes):
                future.result()
        api = Api()
        for n in wanted:
            node.ensure_agents(n, kubernetes)
        for gone in set(api.nodes()) - {n.name for n in wanted}:
            api.delete_node(gone)
        names = [n.name for n in wanted]
        try:
            node.wait("", lambda: not api.unready(names, began), 90)
        except LocalError:
            raise LocalError(_why_unready(api.unready(names, began))) from None
        write_whole(_PLAN, promise)
    return True


def _begin(wanted: tuple[Node, ...], promise: str) -> None:
    """Folders, keys and the bridge; what another plan left behind is stopped first."""
    STATE.mkdir(parents=True, exist_ok=True)
    STATE.chmod(0o755)
    SOURCES.mkdir(parents=True, exist_ok=True)
    for folder in (SHARED, SOURCES):
        os.chown(folder, POD_UID, POD_UID)
    if certs.ensure() or (
        _settings() and json.loads(_settings()) | {"nodes": 0} != json.loads(promise) | {"nodes": 0}
    ):
        _stop(every_node())  # other keys, binaries or flags: everything starts anew
    for extra in set(every_node()) - set(wanted):
        node.stop(extra)
    certs.ensure_token()
    write_whole(STATE / "admin.kubeconfig", configs.kubeconfig("admin"), 0o600)
    for name in ("controller-manager", "scheduler", "coredns"):
        write_whole(STATE / f"{name}.kubeconfig", configs.kubeconfig(name), 0o600)
    write_whole(KUBECONFIG, configs.kubeconfig("admin"), 0o600)
    write_whole(STATE / "resolv.conf", f"nameserver {BRIDGE_ADDRESS}\n")
    network.ensure_bridge()


def _pause() -> Path:
    return archive.pause_archive(STATE / "images" / "pause.tar", configs.PAUSE_IMAGE)


def _commands(kubernetes: Path, coredns: Path) -> dict[str, list[str]]:
    """The control plane's command lines, by name."""
    return {
        "etcd": configs.etcd(),
        "apiserver": configs.apiserver(kubernetes / "kube-apiserver"),
        "controller-manager": configs.controller_manager(
            kubernetes / "kube-controller-manager", STATE / "controller-manager.kubeconfig"
        ),
        "scheduler": configs.scheduler(kubernetes / "kube-scheduler", STATE / "scheduler.kubeconfig"),
        "coredns": [str(coredns / "coredns"), "-conf", str(STATE / "Corefile")],
    }


def _control_plane(commands: dict[str, list[str]]) -> None:
    (STATE / "etcd").mkdir(mode=0o700, exist_ok=True)
    if not processes.record("etcd"):
        processes.stop("apiserver")  # it would wait a minute for the etcd that is gone
    processes.start("etcd", commands["etcd"])
    # An API server gives up after 20 s without etcd, which first reads its log: from a cold disk for longer.
    node.wait("etcd", etcd_ready, 180, "etcd")
    if not processes.record("apiserver") and not _soon(network.port_free, 5):
        raise LocalError(
            f"Something that is not ours listens on {configs.SERVER}, where the local API server belongs. "
            "`ss -ltnp` says what; end it and try again."
        )
    processes.start("apiserver", commands["apiserver"])
    node.wait("the API server", Api().ready, 90, "apiserver")
    for name in ("controller-manager", "scheduler"):
        processes.start(name, commands[name])
    outside = configs.resolvers(Path("/etc/resolv.conf").read_text())
    if write_whole(STATE / "Corefile", configs.corefile(STATE / "coredns.kubeconfig", outside)):
        processes.stop("coredns")
    processes.start("coredns", commands["coredns"])


def _soon(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether `holds` does within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _why_unready(unready: dict[str, str]) -> str:
    lines = [
        f"{name}: {reason}; the end of its kubelet's log:\n{processes.last_words(name + '-kubelet')}"
        for name, reason in unready.items()
    ]
    return "These nodes were not ready after 90 s:\n" + "\n".join(lines)


def _stop(which: tuple[Node, ...]) -> None:
    """End everything, in the order that lets each end quickly."""
    for n in which:
        processes.stop(*node.daemons(n)[1:])
    with ThreadPoolExecutor(len(which)) as pool:
        list(pool.map(node.stop, which))
    processes.stop(*CONTROL_PLANE[:-1])
    processes.stop(CONTROL_PLANE[-1])
    processes.stop_all(processes.marked(), seconds=3)  # daemons whose record was lost
    for file in processes.RECORDS.glob("*.json"):
        file.unlink()
    kernel.unmount_below(STATE)


def down(wipe: bool = False) -> list[str]:
    """Stop all and undo it; returns what is left over (nothing, if all went well). `wipe` drops data as
    well."""
    _need_root()
    if not STATE.exists():
        return leftovers()
    with lock():
        _stop(every_node())
        network.remove_all()
        builds = cache() / "images"
        with locked(builds / "lock", "the launcher image"):  # an image build that was killed leaves mounts
            kernel.unmount_below(builds)
        _PLAN.unlink(missing_ok=True)
        if wipe:
            # The Pulumi state goes too: without its cluster it would describe what is not there.
            for name in ("etcd", "nodes", "images", "pki", "logs", "run", "pulumi", "pulumi-home"):
                shutil.rmtree(STATE / name, ignore_errors=True)
            for file in (
                KUBECONFIG,
                PASSPHRASE,
                EKS_TOKEN,
                *STATE.glob("*.kubeconfig"),
                *STATE.glob("*.yaml"),
            ):
                file.unlink(missing_ok=True)
    return leftovers()


def leftovers() -> list[str]:
    """Processes, groups, mounts, namespaces, links, routes and rules of ours, one text each."""
    return [
        *(f"process {who.pid} (daemon or shim of the local cluster)" for who in processes.marked()),
        *(line for n in every_node() for line in node.leftovers(n)),
        *kernel.leftovers(),
        *network.leftovers(),
    ]


def status() -> list[tuple[str, str]]:
    """Lines for people: each daemon and node with what it is doing."""
    wanted = running_nodes()
    names = [*reversed(CONTROL_PLANE), *(d for n in wanted for d in node.daemons(n))]
    recorded = processes.records()
    lines = []
    for name in names if recorded else []:
        who = recorded.get(name)
        lines.append((name, f"runs (pid {who.pid})" if who else "does not run: `make cluster` mends it"))
    api = Api()
    if wanted and api.ready():
        unready = api.unready([n.name for n in wanted], 0)
        lines += [(n.name, f"not ready: {unready[n.name]}" if n.name in unready else "Ready") for n in wanted]
    return lines
