"""A script for runtime collective whose processes only count their steps; it needs no library.

The environment variable FAKE is JSON and selects faults of attempt 0: {"<rank>": {"do": "exit|signal|hang", "code": …,
"signal": …, "at": [epoch, step]}}. {"every": …} selects the faults of all attempts.

FAKE_STEP_SECONDS is the duration of a step in attempt 0, FAKE_LATER_SECONDS (0.03 s) that in later attempts.
"""

import json
import os
import signal
import sys
import time

from launcher.program import ScriptRun

STEPS = 6
FAKE = json.loads(os.environ["FAKE"])
RANK = os.environ["PADDLE_TRAINER_ID"]
IS_FIRST = os.environ["PADDLE_LAUNCHER_ATTEMPT"] == "0"
STEP_SECONDS = float(os.environ.get("FAKE_STEP_SECONDS", "0.03")) if IS_FIRST else None
STEP_SECONDS = STEP_SECONDS or float(os.environ.get("FAKE_LATER_SECONDS", "0.03"))


def cause_fault(place):
    """Cause the fault that FAKE selects for this process and place, if any."""
    always = FAKE.get("every", {})
    fault = always.get(RANK) or (FAKE.get(RANK, {}) if IS_FIRST else {})
    if tuple(fault.get("at", ())) != place:
        return
    print(f"about to {fault['do']}", flush=True)  # noqa: T201
    if fault["do"] == "exit":
        sys.exit(fault.get("code", 0))
    if fault["do"] == "signal":
        os.kill(os.getpid(), fault.get("signal", signal.SIGKILL))
    time.sleep(600)


def train():
    """Count steps from the newest checkpoint on; save after every epoch, and the model at the end."""
    run = ScriptRun()
    found = {**os.environ, "PYTHON": sys.version}
    (run.output / f"environment-{RANK}.json").write_text(json.dumps(found))
    count = json.loads((run.checkpoint / "count.json").read_text()) if run.checkpoint else 0
    print(f"starts at {run.start} with {count}", flush=True)  # noqa: T201
    for epoch in range(run.start[0], run.epochs):
        for step in range(STEPS):
            if (epoch, step) < run.start:
                continue
            cause_fault((epoch, step))
            time.sleep(STEP_SECONDS)
            count += 1
            run.report(epoch, step + 1, STEPS, loss=1 / count, samples=8)
            print(f"epoch {epoch} step {step}", flush=True)  # noqa: T201
            if run.should_save():
                save(run, epoch, step + 1, count)
        run.end_epoch(epoch, accuracy=1 - 1 / count)
        if run.rank == 0:
            save(run, epoch + 1, 0, count)
    if run.rank == 0:
        with run.save_model() as folder:
            (folder / "count.json").write_text(json.dumps(count))


def save(run, epoch, step, count):
    """Save the count of steps."""
    with run.save(epoch, step) as folder:
        (folder / "count.json").write_text(json.dumps(count))


if __name__ == "__main__":
    train()
