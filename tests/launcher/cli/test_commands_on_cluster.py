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

from testkit.waiting import until

STATE = Path("/var/lib/paddle-training")
KUBECONFIG = STATE / "kubeconfig"
BIG = 150 * 1024 * 1024
ROOT = Path(__file__).parents[3]

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


@pytest.fixture(scope="module")
def api():
    kubernetes = pytest.importorskip("kubernetes")
    return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(KUBECONFIG)))


@pytest.fixture(scope="module")
def image(api):
    tags = [
        name
        for node in api.list_node().items
        for entry in node.status.images or []
        for name in entry.names or []
        if name.startswith("localhost/paddle-training:")
    ]
    if not tags:
        pytest.skip("no launcher image on the local cluster: `python -m local image` brings it")
    return max(tags, key=tags.count)


@pytest.fixture(scope="module")
def release(api, image):
    """Yield (namespace, host folder of the job)."""
    name = f"cli-{secrets.token_hex(3)}"
    host = STATE / "shared" / name
    job = host / "quick-start"
    (job / "output" / "model").mkdir(parents=True)
    (job / "output" / "model" / "weights").write_bytes(os.urandom(1 << 20) * (BIG >> 20))
    (job / "output" / "model" / "odd").write_bytes(bytes(range(256)) + b"\r\n\0\xff\xfe")
    (job / "output" / "run.json").write_text(json.dumps({"runId": "quick-start-1", "score": {"error": 0.2}}))
    status = {"runId": "quick-start-1", "state": "complete", "trainers": 1, "passes": 1, "ranks": []}
    (job / "output" / "status.json").write_text(json.dumps(status))
    (job / "output" / "node_0").mkdir()
    (job / "output" / "node_0" / "train.log").write_text("pass 0\n")
    for folder, _, files in os.walk(host):
        for path in (folder, *(f"{folder}/{file}" for file in files)):
            os.chown(path, 10001, 10001)
    host.chmod(0o700)
    api.create_namespace(
        {"metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    )
    size = {"storage": "1Gi"}
    api.create_persistent_volume(
        {
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": str(host)},
                "storageClassName": "",
                "claimRef": {"namespace": name, "name": "jobs"},
            },
        }
    )
    claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name}
    api.create_namespaced_persistent_volume_claim(
        name, {"metadata": {"name": "jobs"}, "spec": {**claim, "resources": {"requests": size}}}
    )
    run = {
        "jobName": "quick-start",
        "jobPath": "/home/jobpath",
        "claim": "jobs",
        "image": image,
        "imagePullPolicy": "Never",
        "imagePullSecrets": [],
        "serviceAccount": "default",
        "trainers": 1,
        "passes": 1,
        "k8sJob": "quick-start-1",
        "k8sDataJob": "quick-start-data-1",
        "dataDigest": "d",
        "uid": 10001,
        "gid": 10001,
    }
    labels = {"app.kubernetes.io/name": "paddle-training", "app.kubernetes.io/instance": "r"}
    api.create_namespaced_config_map(
        name, {"metadata": {"name": "r-run", "labels": labels}, "data": {"run.json": json.dumps(run)}}
    )
    until(lambda: api.list_namespaced_service_account(name).items, "the default service account", 60, 0.2)
    yield name, job
    api.delete_namespace(name)
    api.delete_persistent_volume(name)
    shutil.rmtree(host)


def start(release, *argv):
    namespace, job = release
    command = [*WITHOUT_OVERRIDE, sys.executable, "-c", LAUNCHER, str(job), argv[0]]
    command += ["--kubeconfig", str(KUBECONFIG), "--release", "r", "--namespace", namespace]
    return subprocess.Popen(
        [*command, *map(str, argv[1:])], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(release, *argv):
    process = start(release, *argv)
    out, err = process.communicate(timeout=180)
    return process.returncode, out.decode(), err.decode()


def readers(api, namespace):
    selector = "app.kubernetes.io/component=reader"
    return [
        pod.metadata.name
        for pod in api.list_namespaced_pod(namespace, label_selector=selector).items
        if pod.metadata.deletion_timestamp is None
    ]


def sums(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_results_are_copied_with_matching_sums_and_the_pod_is_deleted(api, release, tmp_path):
    code, out, err = run(release, "results", "--to", tmp_path / "to")
    assert code == 0, err
    assert "error 0.2" in out
    assert int(re.search(r"took (\d+) MiB", err)[1]) < 120  # about 75 for any command; 150 were copied
    assert sums(tmp_path / "to") == sums(release[1] / "output")
    code, out, err = run(release, "status")
    assert (code, "complete" in out) == (0, True), err
    assert run(release, "logs", "--role", "trainer")[1] == "pass 0\n"
    code, _, err = run(release, "logs", "--role", "trainer", "--rank", "5")
    assert (code, "node_5/train.log" in err, "Traceback" in err) == (3, True, False), err
    assert readers(api, release[0]) == []


def test_a_program_and_a_data_file_are_pushed_completely(api, release, tmp_path):
    program = tmp_path / "mine"
    program.mkdir()
    (program / "trainer_config.py").write_text("x = 1\n")
    (program / "table.bin").write_bytes(os.urandom(5 << 20))
    code, out, err = run(release, "push", program, "--no-check")
    assert code == 0, err
    assert "training.config=mine/trainer_config.py" in out
    assert sums(release[1] / "mine") == sums(program)
    assert (release[1] / "mine").stat().st_uid == 10001
    code, out, err = run(release, "push", program / "table.bin", "--source")
    assert code == 0, err
    assert sums(release[1].parent / "sources") == {"table.bin": sums(program)["table.bin"]}
    assert readers(api, release[0]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_copy_leaves_no_pod_and_no_file(api, release, tmp_path, number):
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
    assert readers(api, release[0]) == []
    assert not target.exists()


def test_a_missing_right_is_reported(api, release, tmp_path):
    namespace = release[0]
    token = api.create_namespaced_service_account_token("default", namespace, {"spec": {}}).status.token
    value = pytest.importorskip("yaml").safe_load(KUBECONFIG.read_text())
    value["users"] = [{"name": user["name"], "user": {"token": token}} for user in value["users"]]
    weak = tmp_path / "weak"
    weak.write_text(json.dumps(value))
    command = ["status", "--release", "r", "--namespace", namespace, "--kubeconfig", str(weak)]
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert 'cannot get resource "configmaps"' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_image_is_reported_and_the_pod_deleted(api, release):
    namespace = release[0]
    saved = api.read_namespaced_config_map("r-run", namespace).data["run.json"]
    broken = {**json.loads(saved), "image": "localhost/nowhere:1"}
    api.patch_namespaced_config_map("r-run", namespace, {"data": {"run.json": json.dumps(broken)}})
    try:
        code, _, err = run(release, "results")
    finally:
        api.patch_namespaced_config_map("r-run", namespace, {"data": {"run.json": saved}})
    assert code == 3
    assert "cannot start: ErrImageNeverPull" in err
    assert readers(api, namespace) == []
