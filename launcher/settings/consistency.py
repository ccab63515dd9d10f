"""Check that settings fit together; a fault is a tuple of arguments for `launcher.errors.setting_message`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.paths import RESERVED_FOLDERS
from launcher.settings.parsers import PORT_MAX

Fault = tuple[str, object, str, str, str]
"""Key, value, limit, reason and fix."""
_L = "PADDLE_LAUNCHER_"


def data_faults(v: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault (arguments of `setting_message`) for each contradiction between a data pod's settings.

    `v` has the values of `DataSettings` by field name.
    """
    expected = v["job_path"] / v["job_name"]
    if v["out_dir"] not in (None, expected):
        yield (
            *("OUT_DIR", str(v["out_dir"]), str(expected)),
            "the training pods read from JOB_PATH/JOB_NAME",
            "Remove OUT_DIR, or set JOB_PATH and JOB_NAME to match it",
        )


def training_faults(v: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield a fault (arguments of `setting_message`) for each contradiction between a training pod's settings.

    `v` has the values of `TrainSettings` by field name.
    """
    first, last = v["port"], v["port"] + v["ports_num"] + v["ports_num_sparse"] - 1
    peer, output = v["peer_port"], f"{v['job_name']}/output"
    if v["gradient_num"] != v["trainers"]:
        yield (
            *("gradientNum (CONF_PADDLE_GRADIENT_NUM)", v["gradient_num"]),
            f"the number of trainers, {v['trainers']}",
            "each trainer sends gradients, and a parameter server waits for exactly so many of them without a deadline",
            "Remove gradientNum, or set it to trainers",
        )
    if v["completion_index"] >= v["trainers"]:
        yield (
            *("JOB_COMPLETION_INDEX", v["completion_index"], f"below trainers, {v['trainers']}"),
            "ranks count from 0, and the other ranks would wait for one that does not exist",
            "Set the Job's completions and trainers to the same number",
        )
    if last > PORT_MAX:
        yield (
            *("port (CONF_PADDLE_PORT)", first, f"at most {PORT_MAX - (last - first)}"),
            f"the last of portsNum + portsNumSparse ports would be {last}, above {PORT_MAX}",
            "Set a lower port, or fewer ports",
        )
    if first <= peer <= last:
        yield (
            *(f"peerPort ({_L}PEER_PORT)", peer, f"outside {first}-{last}"),
            "the parameter servers use those ports (port, portsNum, portsNumSparse)",
            "Set peerPort to another port, or remove it",
        )
    if last <= PORT_MAX < peer:
        yield (
            *(f"peerPort ({_L}PEER_PORT)", peer, f"at most {PORT_MAX}"),
            "by default it is the port after those of the parameter servers, and TCP ports end at 65535",
            "Set a lower port, or peerPort itself",
        )
    if v["checkpoint_every_batches"] and v["checkpoint_every_minutes"]:
        yield (
            f"training.checkpointEvery ({_L}CHECKPOINT_EVERY_BATCHES, {_L}CHECKPOINT_EVERY_MINUTES)",
            f"{v['checkpoint_every_batches']} batches and {v['checkpoint_every_minutes']:g} minutes",
            "batches or minutes, not both",
            "the interval between checkpoints has one unit",
            "Remove one of them, or set it to null",
        )
    if v["incremental_checkpoints"] and v["mode"] == "geo":
        yield (
            *(
                f"training.incrementalCheckpoints ({_L}INCREMENTAL_CHECKPOINTS)",
                v["incremental_checkpoints"],
                "0 with training.mode geo",
            ),
            "in that mode each trainer holds the tables, so the parameter servers cannot save what changed in them",
            "Remove it, or set training.mode to async or sync",
        )
    if f"{v['init_model']}/".startswith(f"{output}/"):
        yield (
            *(f"training.initModelPath ({_L}INIT_MODEL_PATH)", v["init_model"], f"outside {output}"),
            "this training writes to that folder: it resumes from it, or moves it to runs/",
            f"Set it to a folder below {v['job_name']}/runs or of another job",
        )
    if v["config_dir"] in RESERVED_FOLDERS or v["config_dir"].isdecimal():
        yield (
            *("training.config (TRAIN_CONFIG_DIR)", v["config_dir"]),
            f"a name other than {', '.join(sorted(RESERVED_FOLDERS))}, and not a number",
            "those folders of a job contain its shards, tables and outputs",
            "Rename the program's folder",
        )
