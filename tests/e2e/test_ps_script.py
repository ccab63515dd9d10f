"""A repository with a script for Paddle's parameter servers: one command trains it, also after a killed trainer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from launcher.cli.releases import merge_values
from launcher.paths import Position
from local.paths import CLONE
from testkit.local_cluster import Cluster, Training, run_checked
from testkit.waiting import until

PAGE = CLONE / "docs" / "how-to" / "parameter-server-script.md"
STEP = "            (value,) = exe.run(feed=feed, fetch_list=[loss])\n"
KILL = """
import os, pathlib, signal
for entry in pathlib.Path('/proc').glob('[0-9]*'):
    try:
        if b'TRAINING_ROLE=TRAINER' in (entry / 'environ').read_bytes().split(bytes(1)):
            os.kill(int(entry.name), signal.SIGKILL)
    except OSError:
        pass
"""


def test_a_repository_with_a_script_for_parameter_servers_trains_by_one_command(
    cluster: Cluster, train: Callable[..., Training], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its script is in a folder and gets arguments; the runtime is not given, but recognized by the script's calls."""
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert script.count(STEP) == 1
    script = f"import sys\nassert sys.argv[1:] == ['-c', 'a b']\n{script}".replace(
        STEP, f"{STEP}            __import__('time').sleep(0.3)\n"
    )
    repository = tmp_path / "ranking"
    (repository / "tools").mkdir(parents=True)
    (repository / "tools" / "train_ps.py").write_text(script)
    (repository / "setup.py").write_text("")
    (repository / "latest").symlink_to("tools")
    base = train(scheduling={"suspend": True})  # its image and storage are those of the next training
    base.upgrade()
    job = f"{base.namespace}-ps"
    small = {"requests": {"cpu": "100m", "memory": "700Mi"}, "limits": {"memory": "700Mi"}}
    values = {"jobName": job, "trainers": 2, "resources": small, "training": {"restarts": 1}}
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({**values, "scheduling": {"suspend": False}}))
    words = ("run", str(repository), "--script", "tools/train_ps.py", "-f", str(file), "--passes", "4")
    words += ("-n", base.namespace, "--release", "ps")
    command = ["python", "-m", "launcher", *words, "--keep", str(tmp_path / "kept.yaml"), "--timeout", "0"]
    followed = run_checked([*command, "--", "-c", "a b"], cluster.env, check=False)
    assert followed.returncode == 2, followed.stderr
    kept = yaml.safe_load((tmp_path / "kept.yaml").read_text())
    assert (kept["runtime"], kept["data"]) == ("ps", {"enabled": False})
    training = Training(cluster, base.namespace, merge_values(base.values, kept), "ps")
    request.addfinalizer(lambda: shutil.rmtree(training.job, ignore_errors=True))
    until(
        (training.output / Position(1).folder / "done").exists,
        "a checkpoint",
        150,
        0.5,
        training.last_log_lines,
    )
    cluster.kubectl("exec", training.pod(1), "-n", training.namespace, "--", "python", "-c", KILL)
    training.complete(240)
    run = training.record()
    assert (run["state"], run["attempt"], len(run["restarts"])) == ("complete", 1, 1)
    assert "trainer exited with signal SIGKILL" in run["restarts"][0]["cause"]
    assert run["resume"]["pass"] >= 1
    assert list((training.output / Position(4).folder / "000").glob("part-*")), "the last tables"
    assert (training.output / "node_1" / "server.log").exists()
