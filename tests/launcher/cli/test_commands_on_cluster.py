"""Commands on a real cluster, by a user who cannot read the nodes' folder. Needs `make cluster`.

A claim over a hostPath of the local cluster, and the run's ConfigMap, stand for a release whose pods are
all gone.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from local.paths import CLONE, KUBECONFIG
from testkit.local_cluster import find_cluster
from testkit.waiting import until

from .conftest import RUN_JSON

BIG = 150 * 1024 * 1024

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not KUBECONFIG.exists(), reason="no local cluster: run `make cluster` first"),
]

WITHOUT_OVERRIDE = ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")
"""Starts a command without root's right to read everybody's files."""

LAUNCHER = """
import os, sys
from launcher.cli import main
try:
    os.listdir(sys.argv.pop(1))
except PermissionError:
    code = main.run_command(sys.argv[1:])
    peak = int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
    print("took", peak >> 10, "MiB", file=sys.stderr)
    sys.exit(code)
sys.exit("this user can read the host folder: the test proves nothing")
"""

OBJECTS = Path(__file__).with_name("cluster_objects.yaml").read_text()


@pytest.fixture(scope="module")
def cluster():
    return find_cluster()


@pytest.fixture(scope="module")
def release(cluster):
    """Yield (namespace, host folder of the job)."""
    name = f"cli-{secrets.token_hex(3)}"
    host = cluster.shared / name
    output = host / "quick-start" / "output"
    (output / "model").mkdir(parents=True)
    (output / "model" / "weights").write_bytes(os.urandom(1 << 20) * (BIG >> 20))
    (output / "model" / "odd").write_bytes(bytes(range(256)) + b"\r\n\0\xff\xfe")
    (output / "run.json").write_text(json.dumps({"runId": "quick-start-1", "score": {"error": 0.2}}))
    status = {"runId": "quick-start-1", "state": "complete", "trainers": 1, "passes": 1, "ranks": []}
    (output / "status.json").write_text(json.dumps(status))
    (output / "node_0").mkdir()
    (output / "node_0" / "train.log").write_text("pass 0\n")
    for path in (host, *host.rglob("*")):
        os.chown(path, 10001, 10001)
    host.chmod(0o700)
    objects = yaml.safe_load(OBJECTS.replace("NAME", name).replace("HOST", str(host)))
    run = {"claim": "jobs", "image": cluster.image, "imagePullPolicy": "Never", "serviceAccount": "default"}
    run |= {"trainers": 1, "passes": 1, "k8sJob": "quick-start-1", "k8sDataJob": "quick-start-data-1"}
    objects[-1]["data"] = {"run.json": json.dumps({**RUN_JSON, **run})}
    given = {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", **one} for one in objects]}
    cluster.kubectl("apply", "-f", "-", given=json.dumps(given))
    until(lambda: cluster.get("serviceaccounts", name), "the default service account", 60, 0.2)
    yield name, output.parent
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("delete", "persistentvolume", name, "--wait=false")
    shutil.rmtree(host)


def start(release, *argv):
    namespace, job = release
    command = [*WITHOUT_OVERRIDE, sys.executable, "-c", LAUNCHER, str(job), argv[0]]
    command += ["--kubeconfig", str(KUBECONFIG), "--release", "r", "--namespace", namespace]
    return subprocess.Popen(
        [*command, *map(str, argv[1:])], cwd=CLONE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(release, *argv):
    process = start(release, *argv)
    out, err = process.communicate(timeout=180)
    return process.returncode, out.decode(), err.decode()


def readers(cluster, namespace):
    pods = cluster.get("pods", namespace, "app.kubernetes.io/component=reader")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def sums(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_results_are_copied_with_matching_sums_and_the_pod_is_deleted(cluster, release, tmp_path):
    code, out, err = run(release, "results", "--to", tmp_path / "to")
    assert code == 0, err
    assert "error 0.2" in out
    assert int(re.search(r"took (\d+) MiB", err)[1]) < 120  # about 75 for any command; 150 were copied
    assert sums(tmp_path / "to") == sums(release[1] / "output")
    code, out, err = run(release, "status")
    assert (code, "complete" in out) == (0, True), err
    assert run(release, "logs", "--role", "trainer")[1] == "pass 0\n"
    assert readers(cluster, release[0]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_copy_leaves_no_pod_and_no_file(cluster, release, tmp_path, number):
    target = tmp_path / "to"
    process = start(release, "results", "--to", target)

    def copying():
        assert process.poll() is None, process.communicate()
        return list(target.glob(".results-*.tmp/output/model/weights"))

    until(copying, "the copy's beginning", 60, 0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert b"Traceback" not in err
    assert readers(cluster, release[0]) == []
    assert not target.exists()
