"""A stand-in for the `paddle` binary of runtime v1, with the same flags, ports and passes.

The environment variable FAKE is JSON and selects faults:
{"<role>:<rank>": {"do": "exit|signal|write|hang", "at": "start|later|<pass>", …}}.
With {"model": {name: bytes}} trainer 0 writes a model of such files.
"""

import sys

if sys.argv[2:] == ["--help"]:  # before the imports below, which take most of the time
    print("flags: -nics -port -ports_num -ports_num_for_sparse")  # noqa: T201
    sys.exit(1)

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

SETTINGS = json.loads(os.environ.get("FAKE", "{}"))
HOSTS = json.loads(os.environ.get("FAKE_HOSTS", "{}"))
STARTED = time.monotonic()
RANK = os.environ.get("JOB_COMPLETION_INDEX", "0")


def parse_flags(arguments):
    """Return the command line flags `--name=value` as a dict."""
    return dict(argument.removeprefix("--").split("=", 1) for argument in arguments)


def cause_fault(role, moment):
    """Cause the fault that FAKE selects for this role, rank and moment, if any.

    `moment` is "start", "later" or the number of a pass.
    """
    what = SETTINGS.get(f"{role}:{RANK}", {})
    if what.get("grandchild") and moment == "start":
        code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        subprocess.Popen([sys.executable, "-S", "-c", code])
    if what.get("ignore_term") and moment == "start":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if str(what.get("at", "")) != str(moment):
        return
    if time.monotonic() - STARTED < what.get("after", 0):
        return
    print(f"about to {what['do']}", flush=True)  # noqa: T201
    if what["do"] == "exit":
        sys.exit(what.get("code", 3))
    if what["do"] == "signal":
        os.kill(os.getpid(), what["signal"])
    if what["do"] == "write":
        Path(what["path"]).write_text("x")
    if what["do"] == "hang":
        time.sleep(600)


def pserver(options):
    """Listen on the ports of a pserver until the training is over."""
    own = HOSTS.get(os.environ["FAKE_OWN"], os.environ["FAKE_OWN"])
    first = int(options["port"])
    last = first + int(options["ports_num"]) + int(options["ports_num_for_sparse"])
    cause_fault("pserver", "start")
    sockets = [socket.create_server((own, port)) for port in range(first, last)]
    print(f"listening on {len(sockets)} ports", flush=True)  # noqa: T201
    stop = Path(os.environ["FAKE_STOP"])
    while not (SETTINGS.get("servers_end") and stop.exists()):
        time.sleep(0.05)
        cause_fault("pserver", "later")


def train(options):
    """Connect to all pservers, and write the log lines, progress and checkpoints of the passes."""
    print(f"initial model: {os.environ.get('FAKE_INITIAL_MODEL')!r}", flush=True)  # noqa: T201
    cause_fault("trainer", "start")
    for host in options["pservers"].split(","):
        for port in range(int(options["port"]), int(options["port"]) + int(options["ports_num"])):
            socket.create_connection((HOSTS.get(host, host), port), timeout=1).close()
    save = Path(options["save_dir"])
    progress = Path(os.environ["PADDLE_LAUNCHER_WORK_DIR"]) / "progress.json"
    first = int(options.get("start_pass", 0))
    for number in range(first, first + int(options["num_passes"])):
        print(f"rank {options['trainer_id']} Pass={number}", flush=True)  # noqa: T201
        cause_fault("trainer", number)
        temp = progress.with_suffix(".tmp")
        temp.write_text(
            json.dumps(
                {"pass": number, "batch": 5, "batches": 10, "samples_per_second": 100.0, "loss": 0.5}
                | {"state": "training"}
            )
        )
        temp.replace(progress)
        time.sleep(float(os.environ.get("FAKE_PASS_SECONDS", "0.05")))
        if options["trainer_id"] == "0" and number % int(options["saving_period"]) == 0:
            folder = save / f"pass-{number:05d}"
            folder.mkdir(exist_ok=True)
            (folder / "done").touch()
    if options["trainer_id"] == "0":
        write_model(save, SETTINGS.get("model", {}))
        Path(os.environ["FAKE_STOP"]).touch()


def write_model(save, sizes):
    """Write a model of random bytes: file name → number of bytes."""
    temp = save / ".model.tmp"
    for name, size in sizes.items():
        (temp / name).parent.mkdir(parents=True, exist_ok=True)
        (temp / name).write_bytes(os.urandom(size))
    if sizes:
        temp.rename(save / "model")


if __name__ == "__main__":
    {"pserver": pserver, "train": train}[sys.argv[1]](parse_flags(sys.argv[2:]))
