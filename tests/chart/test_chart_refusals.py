"""Each mistake that the chart can see has one message: key, value, limit, reason, mend."""

from __future__ import annotations

import shutil

import pytest
from chart_tools import CHART, ONE_MACHINE, helm_template

EFS = {"storage": {"type": "efs-csi"}}
NFS = {"storage": {"type": "nfs"}}
CLAIM = {"storage": {"type": "existingClaim"}}

# values, key, value as printed, a word of the limit, a part of the mend
BAD = [
    ({"trainers": 0}, "trainers", "0", "1 to 1000", "Set trainers to"),
    ({"gradientNum": 2}, "gradientNum", "2", "trainers, which is 3", "Leave gradientNum null"),
    ({"image": ""}, "image", '""', "an image's name", "Build launcher/Dockerfile"),
    ({"image": "a b"}, "image", '"a b"', "without spaces", "Remove the spaces"),
    ({"jobName": "j" * 46}, "jobName", f'"{"j" * 46}"', "at most 45 characters", "shorter or plainer name"),
    ({"jobName": "quick_start"}, "jobName", '"quick_start"', "DNS label", "shorter or plainer name"),
    ({"jobPath": "home"}, "jobPath", '"home"', "absolute path", "Leave it at /home/jobpath"),
    ({"jobPath": "/work"}, "jobPath", '"/work"', "outside /work", "Leave it at /home/jobpath"),
    ({"port": 65533}, "port", "65533", "1024 to 65532", "Set another port"),
    ({"port": 80}, "port", "80", "1024 to", "Set another port"),
    ({"portsNum": 0}, "portsNum", "0", "at least 1", "Set it to 1"),
    ({"portsNumSparse": 0}, "portsNumSparse", "0", "at least 1 with runtime fleet", "Set it to 1"),
    ({"peerPort": 7167}, "peerPort", "7167", "outside 7164 to 7167", "Leave peerPort null"),
    ({"peerPort": 70000}, "peerPort", "70000", "1024 to 65535", "Set a lower port"),
    ({"hostPorts": True, "port": 10248}, "port", "10248", "port 10250 stays free", "hostPorts to false"),
    (
        {"hostPorts": True, "peerPort": 10250},
        "peerPort",
        "10250",
        "port 10250 stays free",
        "hostPorts to false",
    ),
    ({"hostPorts": True, "port": 30001}, "port", "30001", "outside 30000 to 32767", "hostPorts to false"),
    ({"hostPorts": True, "peerPort": 32767}, "peerPort", "32767", "outside 30000", "hostPorts to false"),
    (
        {"training": {"config": "a/b/c"}},
        "training.config",
        '"a/b/c"',
        "FOLDER/FILE",
        "quick_start/trainer_config.py",
    ),
    (
        {"training": {"config": "../x/y"}},
        "training.config",
        '"../x/y"',
        "FOLDER/FILE",
        "quick_start/trainer_config.py",
    ),
    (
        {"training": {"config": "output/x.py"}},
        "training.config",
        '"output/x.py"',
        "other than",
        "another name",
    ),
    ({"training": {"config": "0/x.py"}}, "training.config", '"0/x.py"', "a number", "another name"),
    ({"training": {"extraArgs": ["--x"]}}, "training.extraArgs", '"--x"', "--key=value", "one item"),
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
        {"training": {"exportTo": "/srv/models"}},
        "training.exportTo",
        '"/srv/models"',
        "s3://BUCKET/PREFIX",
        "Leave it empty",
    ),
    (
        {"training": {"exportTo": "s3://ab"}},
        "training.exportTo",
        '"s3://ab"',
        "s3://BUCKET",
        "Leave it empty",
    ),
    (
        {"training": {"exportTo": "s3://bucket/a/../b"}},
        *("training.exportTo", '"s3://bucket/a/../b"', "s3://BUCKET/PREFIX", "Leave it empty"),
    ),
    (
        {"training": {"exportTo": "s3://bucket/a b"}},
        *("training.exportTo", '"s3://bucket/a b"', "s3://BUCKET/PREFIX", "Leave it empty"),
    ),
    ({"training": {"stallSeconds": 0}}, "training.stallSeconds", "0", "at least 10", "slowest batch"),
    (
        {"training": {"saveEvery": {"batches": 5, "minutes": 1}}},
        *("training.saveEvery", '{"batches":5,"minutes":1}', "not both", "set it to null"),
    ),
    (
        {"training": {"saveEvery": {"batches": 5}}, "runtime": "v1"},
        *("training.saveEvery", '{"batches":5}', "empty with runtime v1", "savingPeriod"),
    ),
    *(
        (
            {"training": {"initFrom": bad}},
            "training.initFrom",
            f'"{bad}"',
            "s3://BUCKET/PREFIX",
            "Name the folder",
        )
        for bad in (
            "/srv/other",
            "a/../b",
            "..",
            "a//b",
            "s3://bucket",
            "s3://bucket/",
            "s3://bucket/a/../b",
            "s3:/b",
        )
    ),
    (
        {"training": {"initFrom": "other/output"}, "runtime": "v1"},
        *("training.initFrom", '"other/output"', "empty with runtime v1", "runtime to fleet"),
    ),
    (
        {"training": {"initFrom": "paddle-job/output"}},
        *("training.initFrom", '"paddle-job/output"', "outside paddle-job/output", "paddle-job/runs"),
    ),
    (
        {"data": {"source": "s3://bucket", "member": "a"}},
        *("data.source", '"s3://bucket"', "s3://BUCKET/KEY of one archive", "Name the archive itself"),
    ),
    (
        {"data": {"source": "s3://bucket/a/", "member": "a"}},
        *("data.source", '"s3://bucket/a/"', "s3://BUCKET/KEY of one archive", "Name the archive itself"),
    ),
    (
        {"extraEnv": [{"name": "JOB_NAME", "value": "x"}]},
        *("extraEnv", '"JOB_NAME"', "neither this chart nor the image", "Remove it"),
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
    (
        {"data": {"splitCount": 4}},
        "data.splitCount",
        "4",
        "trainers, which is 3",
        "Leave data.splitCount null",
    ),
    ({"data": {"source": ""}}, "data.source", '""', "https://", "file://NAME"),
    ({"data": {"source": "ftp://a/b"}}, "data.source", '"ftp://a/b"', "https://", "file://NAME"),
    ({"data": {"source": "http://a/b"}}, "data.sha256", '""', "given with an http source", "sha256sum"),
    (
        {"data": {"source": "file://../b"}},
        "data.source",
        '"file://../b"',
        "without '/'",
        "Put the file into sources/",
    ),
    (
        {"data": {"source": "file:///etc/b"}},
        "data.source",
        '"file:///etc/b"',
        "inside",
        "Put the file into sources/",
    ),
    ({"data": {"sha256": "12"}}, "data.sha256", '"12"', "64 hexadecimal digits", "sha256sum"),
    ({"data": {"member": "a/../../b"}}, "data.member", '"a/../../b"', "without '..'", "the archive's list"),
    ({"data": {"member": "/b"}}, "data.member", '"/b"', "without '..'", "the archive's list"),
    ({"data": {"tables": ["../b"]}}, "data.tables", '"../b"', "without '..'", "the archive's list"),
    ({"data": {"tables": ["a/t", "b/t"]}}, "data.tables", '"b/t"', "no other table", "Remove one"),
    ({"data": {"delimiter": "::"}}, "data.delimiter", '"::"', "one character", "stands between"),
    ({"data": {"columns": ["a"]}}, "data.columns", '["a"]', "empty with data.format lines", "to csv"),
    (
        {"data": {"format": "csv", "header": False, "columns": ["a"]}},
        *("data.columns", '"a"', "an index", "data.header to true"),
    ),
    (
        {"data": {"testSource": "http://example.org/x"}},
        "data.testSource",
        '"http://example.org/x"',
        "https://…, s3://BUCKET/PREFIX or file://NAME",
        "nothing else",
    ),
    (EFS, "storage.efsCsi.fileSystemId", '""', "fs-", "describe-file-systems"),
    (
        {"storage": {"type": "efs-csi", "efsCsi": {"fileSystemId": "fs-01234567", "accessPointId": "x"}}},
        *("storage.efsCsi.accessPointId", '"x"', "fsap-", "describe-access-points"),
    ),
    (NFS, "storage.nfs.server", '""', "a server's name", "nodes can resolve"),
    (
        {"storage": {"type": "nfs", "nfs": {"server": "a", "path": "x"}}},
        *("storage.nfs.path", '"x"', "absolute", "Begin it with /"),
    ),
    (
        {"storage": {"hostPath": {"path": "x"}}},
        "storage.hostPath.path",
        '"x"',
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
    ({"scheduling": {"queue": "q"}}, "scheduling.suspend", "false", "true with scheduling.queue", "to true"),
    ({"serviceAccount": {"create": False}}, "serviceAccount.name", '""', "create false", "Name an account"),
]


@pytest.mark.parametrize(("values", "key", "value", "limit", "mend"), BAD, ids=lambda item: str(item)[:60])
def test_a_bad_value_is_refused_with_key_value_limit_and_mend(values, key, value, limit, mend):
    done = helm_template(ONE_MACHINE, values=values)
    assert done.returncode != 0, "it was accepted"
    line = next((line for line in done.stderr.splitlines() if f"{key} is {value}, but must be " in line), "")
    assert line, done.stderr
    assert limit in line
    assert mend in line


def test_a_secret_in_plain_text_is_refused_without_being_printed():
    values = {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://me:topsecret@proxy:3128"}]}
    done = helm_template(ONE_MACHINE, values=values)
    assert done.returncode != 0
    assert "topsecret" not in done.stdout + done.stderr


def test_the_old_binary_may_be_given_its_threads():
    """Runtime fleet sets them itself; v1 passes its environment on."""
    own = [{"name": "OMP_NUM_THREADS", "value": "4"}]
    assert helm_template(ONE_MACHINE, values={"extraEnv": own, "runtime": "v1"}).returncode == 0


@pytest.mark.parametrize(
    "place", ["other/output", "paddle-job/runs/x.y", "other/output/", "s3://bucket/a/b_c/"]
)
def test_a_runs_folder_is_a_place_to_begin_from_for_chart_and_launcher(place):
    from launcher.parsers import init_from

    assert helm_template(ONE_MACHINE, values={"training": {"initFrom": place}}).returncode == 0
    assert init_from(place) == place.rstrip("/")


def test_all_mistakes_are_told_at_once():
    done = helm_template(ONE_MACHINE, values={"trainers": 0, "image": "", "data": {"sha256": "x"}})
    for key in ("trainers is 0", 'image is ""', 'data.sha256 is "x"'):
        assert key in done.stderr


@pytest.mark.parametrize("name", ["a.b", "1st"])
def test_a_release_whose_name_is_no_service_name_is_refused(name):
    done = helm_template(ONE_MACHINE, release=name)
    assert f'the release\'s name is "{name}", but must be' in done.stderr


def probe(tmp_path, call: str):
    """Renders the chart with one more template that calls a check whose input a test cannot have for real."""
    copy = tmp_path / "paddle-training"
    shutil.copytree(CHART, copy)
    (copy / "templates" / "probe.yaml").write_text(f"{{{{- fail ({call}) }}}}\n", encoding="utf-8")
    return helm_template(ONE_MACHINE, chart=copy).stderr


@pytest.mark.parametrize(
    ("version", "refused"), [("v3.13.3", True), ("v3.14.0", False), ("v3.19", False), ("v4.0.1", False)]
)
def test_a_helm_older_than_3_14_is_refused(tmp_path, version, refused):
    text = probe(tmp_path, f'include "paddle-training.validate.helmVersion" "{version}" | printf "probe %s"')
    assert "probe" in text
    assert ("but must be 3.14 or newer" in text) is refused


def test_a_claim_of_another_access_mode_is_refused(tmp_path):
    call = 'include "paddle-training.validate.claimModes" (list "disk" (list "ReadWriteOnce"))'
    call += ' | printf "probe %s"'
    text = probe(tmp_path, call)
    assert 'storage.existingClaim.name is "disk", but must be a claim with access mode ReadWriteMany' in text
    assert "this one has ReadWriteOnce" in text


def test_host_ports_in_a_restricted_namespace_are_refused(tmp_path):
    call = 'include "paddle-training.validate.podSecurity" (list "paddle" "restricted") | printf "probe %s"'
    text = probe(tmp_path, call)
    assert "hostPorts is true" in text
    assert "kubectl label namespace paddle pod-security.kubernetes.io/enforce=privileged" in text
