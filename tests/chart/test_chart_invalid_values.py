"""Each invalid value gives one message: key, value, limit, reason, fix."""

from __future__ import annotations

import json

import pytest
import yaml
from chart_tools import CHART, ONE_MACHINE, helm_template
from jsonschema import Draft7Validator

from launcher.cli.launch_training import merge_values, nest_keys

EFS = {"storage": {"type": "efs-csi"}}
NFS = {"storage": {"type": "nfs"}}
CLAIM = {"storage": {"type": "existingClaim"}}

# values, key, value as printed, a word of the limit, a part of the fix
BAD = [
    (
        {"data": {"splitCount": 4}},
        "data.splitCount",
        "4",
        "3, the number of trainers",
        "Set data.splitCount to null",
    ),
    ({"gradientNum": 2}, "gradientNum", "2", "3, the number of trainers", "Set gradientNum to null"),
    ({"image": ""}, "image", '""', "the name of an image", "Build launcher/Dockerfile"),
    ({"jobPath": "/work"}, "jobPath", '"/work"', "outside /work", "Set another mount path"),
    ({"jobPath": "/a/../work"}, "jobPath", '"/a/../work"', "without '..'", "Write the path without"),
    ({"port": 65532}, "port", "65532", "at most 65531", "Set a lower port"),
    ({"peerPort": 7167}, "peerPort", "7167", "outside 7164 to 7167", "Set peerPort to null"),
    ({"hostPorts": True, "port": 10248}, "port", "10248", "10250 to 10250 stay free", "hostPorts to false"),
    (
        {"hostPorts": True, "peerPort": 32767},
        "peerPort",
        "32767",
        "30000 to 32767 stay free",
        "hostPorts to false",
    ),
    (
        {"training": {"config": "output/x.py"}},
        "training.config",
        '"output/x.py"',
        "other than",
        "another name",
    ),
    ({"training": {"config": "0/x.py"}}, "training.config", '"0/x.py"', "a number", "another name"),
    (
        {"training": {"extraArgs": ["--num_passes=3"]}},
        "training.extraArgs",
        '"--num_passes=3"',
        "no value",
        "Remove it",
    ),
    (
        {"training": {"extraArgs": ["--x=1", "--x=2"]}},
        "training.extraArgs",
        '"--x=2"',
        "given once",
        "Remove one",
    ),
    (
        {"training": {"rankWaitHours": 2, "deadlineSeconds": 7200}},
        *(
            "training.rankWaitHours",
            "2",
            "at most 1.75",
            "training.deadlineSeconds to a higher value or null",
        ),
    ),
    (
        {"training": {"extraArgs": ["--trainer-id=3"]}, "runtime": "v1"},
        *("training.extraArgs", '"--trainer-id=3"', "a flag that no value of this chart sets", "Remove it"),
    ),
    (
        {"training": {"checkpointEvery": {"batches": 5}}, "runtime": "v1"},
        *("training.checkpointEvery.batches", "5", "unset with runtime v1", "savingPeriod"),
    ),
    (
        {"training": {"incrementalCheckpoints": 5}, "runtime": "v1"},
        *("training.incrementalCheckpoints", "5", "0 with runtime v1", "runtime to fleet"),
    ),
    (
        {"training": {"keepBest": "auc"}, "runtime": "v1"},
        *("training.keepBest", '"auc"', "empty with runtime v1", "runtime to fleet"),
    ),
    (
        {"training": {"patience": 2}},
        *("training.patience", "2", "0 without training.keepBest", "test metric of the program"),
    ),
    (
        {"training": {"initModelPath": "other/output"}, "runtime": "v1"},
        *("training.initModelPath", '"other/output"', "empty with runtime v1", "runtime to fleet"),
    ),
    (
        {"training": {"initModelPath": "paddle-job/output"}},
        *("training.initModelPath", '"paddle-job/output"', "outside paddle-job/output", "paddle-job/runs"),
    ),
    (
        {"data": {"source": "s3://bucket", "member": "a"}},
        *("data.source", '"s3://bucket"', "s3://BUCKET/KEY of one archive", "Set data.source to the archive"),
    ),
    (
        {"extraEnv": [{"name": "PYTHONPATH", "value": "x"}]},
        *("extraEnv", '"PYTHONPATH"', "neither this chart nor the image", "Remove it"),
    ),
    (
        {"extraEnv": [{"name": "OMP_NUM_THREADS", "value": "4"}]},
        *("extraEnv", '"OMP_NUM_THREADS"', "neither this chart nor the image", "Remove it"),
    ),
    (
        {"extraEnv": [{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]},
        *("extraEnv", '"A"', "given once", "Remove one"),
    ),
    ({"extraEnv": [{"name": "A"}]}, "extraEnv A", '""', "either value or valueFrom", "exactly one"),
    (
        {"extraEnv": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "a.b"}}}]},
        *("extraEnv A", '"value and valueFrom"', "either value or valueFrom", "exactly one"),
    ),
    (
        {"extraEnv": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}]},
        *("extraEnv AWS_SECRET_ACCESS_KEY", '"(not shown)"', "valueFrom.secretKeyRef", "into a Secret"),
    ),
    (
        {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://me:secret@proxy:3128"}]},
        *("extraEnv HTTPS_PROXY", '"(not shown)"', "valueFrom.secretKeyRef", "into a Secret"),
    ),
    ({"data": {"source": ""}}, "data.source", '""', "https://", "file://NAME"),
    ({"data": {"source": "http://a/b"}}, "data.sha256", '""', "given with an http source", "sha256sum"),
    (
        {"data": {"source": "file://../b"}},
        "data.source",
        '"file://../b"',
        "without '..'",
        "Write the path without",
    ),
    ({"data": {"tables": ["../b"]}}, "data.tables", '"../b"', "without '..'", "Write the path without"),
    (
        {"data": {"source": "https://me:secret@example.org/x"}},
        *("data.source", '"(not shown)"', "without user name and password", "keys in a Secret"),
    ),
    (
        {"data": {"testSource": "https://me:secret@example.org/x"}},
        *("data.testSource", '"(not shown)"', "without user name and password", "keys in a Secret"),
    ),
    (
        {"data": {"preparedBy": "trainingPods", "workers": 3}},
        *("data.workers", "3", "1 with data.preparedBy trainingPods", "Remove data.workers"),
    ),
    ({"data": {"tables": ["a/t", "b/t"]}}, "data.tables", '"b/t"', "no other table", "Remove one"),
    (
        {"data": {"tables": ["t"], "member": ""}},
        "data.tables",
        '["t"]',
        "other than data.member",
        "Set data.member",
    ),
    (
        {"data": {"tables": ["t"], "member": "t"}},
        "data.tables",
        '["t"]',
        "other than data.member",
        "Set data.member",
    ),
    ({"data": {"columns": ["a"]}}, "data.columns", '["a"]', "empty with data.format lines", "to csv"),
    (
        {"data": {"format": "csv", "header": False, "columns": ["a"]}},
        *("data.columns", '["a"]', "indexes from 0", "data.header to true"),
    ),
    (EFS, "storage.efsCsi.fileSystemId", '""', "fs-", "describe-file-systems"),
    (NFS, "storage.nfs.server", '""', "a server", "nodes can resolve"),
    (
        {"storage": {"hostPath": {"path": ""}}},
        "storage.hostPath.path",
        '""',
        "absolute",
        "exists on every node",
    ),
    (CLAIM, "storage.existingClaim.name", '""', "the name of a claim", "ReadWriteMany"),
    ({"resources": {"limits": {"memory": "3Gi"}}}, "resources.limits.memory", '"3Gi"', "2Gi", "Set both"),
    (
        {"data": {"resources": {"limits": {"memory": "1Gi"}}}},
        "data.resources.limits.memory",
        '"1Gi"',
        "512Mi",
        "Set both",
    ),
    (
        {"resources": {"limits": {"cpu": "500m"}}},
        *(
            "resources.requests.cpu",
            '"1"',
            "at most 500m, the limit",
            "Set a lower request or a higher limit",
        ),
    ),
    (
        {"resources": {"requests": {"ephemeral-storage": "20Gi"}}},
        *("resources.requests.ephemeral-storage", '"20Gi"', "at most 10Gi", "workDir.sizeLimit"),
    ),
    (
        {"data": {"resources": {"limits": {"cpu": 0.1}}}},
        *("data.resources.requests.cpu", '"250m"', "at most 0.1, the limit", "Set a lower request"),
    ),
    (
        {"podLabels": {"app.kubernetes.io/component": "x"}},
        *("podLabels", '"app.kubernetes.io/component"', "does not set", "another label"),
    ),
    ({"extraVolumes": [{"name": "work"}]}, "extraVolumes", '"work"', "other than jobpath", "another name"),
    (
        {"extraVolumeMounts": [{"name": "a", "mountPath": "/home/jobpath/a"}]},
        *("extraVolumeMounts", '"/home/jobpath/a"', "outside /home/jobpath", "Set another mount path"),
    ),
    (
        {"monitoring": {"podMonitor": {"enabled": True}}},
        *("networkPolicy.metricsFrom", "[]", "given with monitoring.podMonitor.enabled", "Prometheus' pods"),
    ),
    (
        {"serviceAccount": {"create": False}},
        "serviceAccount.name",
        '""',
        "create false",
        "Set it to a service account",
    ),
]


@pytest.mark.parametrize(("values", "key", "value", "limit", "fix"), BAD, ids=lambda item: str(item)[:60])
def test_invalid_value_is_rejected_with_key_value_limit_and_fix(values, key, value, limit, fix):
    done = helm_template(ONE_MACHINE, values=values)
    assert done.returncode != 0, "helm accepted it"
    line = next((line for line in done.stderr.splitlines() if f"{key} is {value}, but must be " in line), "")
    assert line, done.stderr
    assert limit in line
    assert fix in line.partition(". Fix: ")[2]
    assert ",:" not in line
    assert "me:secret" not in done.stdout + done.stderr


# Key → values that the schema rejects, because they are wrong by themselves.
WRONG: dict[str, list[object]] = {
    "trainers": [0, 1001, "3"],
    "runtime": ["v2"],
    "image": ["a b"],
    "jobName": ["j" * 46, "quick_start"],
    "jobPath": ["home"],
    "nic": ["eth 0"],
    "port": [80],
    "portsNum": [0],
    "peerPort": [70000],
    "hostPorts": ["yes"],
    "logFormat": ["xml"],
    "fullnameOverride": ["A"],
    "training.config": ["a/b/c", "../x/y"],
    "training.mode": ["fast"],
    "training.passes": [0],
    "training.batchSize": [10**9, 1.5],
    "training.deadlineSeconds": [10**9],
    "training.extraArgs": [["--x"]],
    "training.progressDeadlineSeconds": [0],
    "training.keepCheckpoints": [0],
    "training.incrementalCheckpoints": [101],
    "training.checkpointEvery.batches": [0],
    "training.checkpointEvery.minutes": [-1],
    "training.exportTo": ["/srv/models", "s3://ab", "s3://bucket/a/../b", "s3://bucket/a b"],
    "training.initModelPath": [
        *("/srv/other", "a/../b", "..", "a//b", "s3://bucket", "s3://bucket/a/../b", "s3:/b")
    ],
    "data.source": ["ftp://a/b", "file:///etc/b"],
    "data.sha256": ["12"],
    "data.member": ["/b"],
    "data.tables": [["b/"]],
    "data.format": ["json"],
    "data.delimiter": ["::"],
    "data.testFraction": [0.6],
    "data.testSource": ["http://a.org/x"],
    "storage.type": ["efs"],
    "storage.size": ["many"],
    "storage.efsCsi.accessPointId": ["x"],
    "storage.nfs.path": ["x"],
    "storage.hostPath.path": ["x"],
    "podLabels": [{"a": "b c"}],
    "podAnnotations": [{"a b": ""}],
    "podSecurityContext.runAsUser": [0],
    "podSecurityContext.seccompProfile.type": ["x"],
    "securityContext.capabilities": [{"drop": None}],
    "scheduling.queue": ["a b"],
    "scheduling.architecture": ["x86_64"],
    "scheduling.topologySpreadConstraints": [[{}]],
    "notify.webhook": ["https://example.org/a-secret"],
    "notify.webhook.secretName": ["Chat"],
    "notify.webhook.key": [""],
    "extraEnv": [
        [{"name": "A", "value": 8080}],
        [{"value": "x", "name": "a-b"}],
        [{"name": "A", "valueFrom": {"vaultRef": {}}}],
    ],
    "extraEnvFrom": [[{"prefix": "A_"}]],
    "imagePullSecrets": [[{"nam": "x"}]],
    "workDir.sizeLimit": ["10GB"],
    "monitoring.podMonitor.interval": ["30"],
    "monitoring.alerts.noBatchMinutes": [0],
    "monitoring.dashboard.labels": [{"a": "b c"}],
    # Unknown keys, which helm itself ignores.
    "trainer": [3],
    "training.pass": [3],
    "training.checkpointEvery.passes": [3],
    "data.splitcount": [3],
    "storage.nfs.host": ["a"],
    "resources.request": [{}],
    "scheduling.nodeselector": [{}],
    "securityContext.privileged": [True],
    "securityContext.runAsUser": [5],
    "serviceAccount.token": ["x"],
    "notify.webhook.url": ["https://example.org"],
}


@pytest.fixture(scope="module")
def schema() -> Draft7Validator:
    return Draft7Validator(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(("key", "wrong"), [(key, each) for key in WRONG for each in WRONG[key]])
def test_value_that_is_wrong_by_itself_is_rejected_by_the_schema(schema, key, wrong):
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    errors = list(schema.iter_errors(merge_values(defaults, nest_keys({"image": "a", key: wrong}))))
    assert errors
    for error in errors:  # an unknown key is reported at the object that has it
        place, last = ".".join(map(str, error.absolute_path)), key.rpartition(".")[2]
        assert f"{place}.".startswith(f"{key}.") or last in error.message, (place, error.message)


def test_helm_reports_each_fault_that_the_schema_finds():
    done = helm_template(ONE_MACHINE, values={"trainers": 0, "training": {"pass": 3}})
    assert done.returncode != 0
    assert "at '/trainers': minimum: got 0, want 1" in done.stderr
    assert "at '/training': additional properties 'pass' not allowed" in done.stderr


def test_thread_variables_are_accepted_with_runtime_v1():
    """Runtime fleet sets them itself; v1 passes its environment to the old binary."""
    own = [{"name": "OMP_NUM_THREADS", "value": "4"}]
    assert helm_template(ONE_MACHINE, values={"extraEnv": own, "runtime": "v1"}).returncode == 0


@pytest.mark.parametrize(
    "place", ["other/output", "paddle-job/runs/x.y", "other/output/", "s3://bucket/a/b_c/"]
)
def test_folder_of_a_run_is_accepted_as_initial_model_by_chart_and_launcher(place):
    from launcher.settings.parsers import init_model

    assert helm_template(ONE_MACHINE, values={"training": {"initModelPath": place}}).returncode == 0
    assert init_model(place) == place.rstrip("/")


def test_all_faults_are_reported_in_one_message():
    done = helm_template(ONE_MACHINE, values={"gradientNum": 9, "image": "", "data": {"source": ""}})
    for key in ("gradientNum is 9", 'image is ""', 'data.source is ""'):
        assert key in done.stderr


@pytest.mark.parametrize("name", ["a.b", "1st"])
def test_release_name_that_is_no_service_name_is_rejected(name):
    done = helm_template(ONE_MACHINE, release=name)
    assert f'the release\'s name is "{name}", but must be' in done.stderr
