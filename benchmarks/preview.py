"""Compare `pulumi preview` of stack `dev` with `pulumi preview` of a program with one bucket.

Prints `preview ratio=… ours=… theirs=…` in wall seconds; the limit of the ratio is 3. Engine, emulated
account and machine are the same, and the runs alternate. As for a user, the engine starts the program, the
provider plugin (testkit/aws_emulator instead of AWS's) and pip for each run. Nothing is deployed, so every
preview plans to create everything; `dev` has an image here, so that the plan includes the release.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._result_lines import print_ratio
from testkit import program_copy
from testkit.aws_emulator.account import Account
from testkit.aws_emulator.pulumi_engine import Engine, moto_server

ROUNDS = 5
LIMIT = 3.0
BUCKET = 'import pulumi_aws as aws\naws.s3.Bucket("one")\n'


def create_engine_for_dev_stack(folder: Path, account: Path) -> Engine:
    """Return an `Engine` that runs Pulumi on a copy, below `folder`, of this program with the stack `dev`.

    `account` is the folder of the emulated AWS account in which the engine plans resources.
    """
    project = program_copy.copy_program(folder / "dev")
    program_copy.add_dev_stack(project, "dev")
    engine = Engine(project, "dev", folder / "home", account, starts_plugin=True).init()
    engine.config("paddle-training:image=registry.example/launcher@sha256:" + "0" * 64)
    return engine


def create_engine_for_one_bucket(folder: Path, account: Path) -> Engine:
    """Return an `Engine` that runs Pulumi on a program with one S3 bucket; same arguments."""
    project = folder / "bucket"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: bucket\nruntime: python\n", encoding="utf-8")
    (project / "__main__.py").write_text(BUCKET, encoding="utf-8")
    engine = Engine(project, "one", folder / "home", account, starts_plugin=True).init()
    engine.config("aws:region=us-west-2")
    return engine


def time_preview(engine: Engine) -> float:
    """Run `pulumi preview` once with `engine` and return its duration in wall seconds."""
    began = time.monotonic()
    done = engine.preview()
    wall = time.monotonic() - began
    assert done.code == 0, done.text
    assert set(done.ops) == {"create"}, done.ops
    return wall


def main() -> int:
    """Run the benchmark and print its result lines; return 1 if the limit is exceeded."""
    with tempfile.TemporaryDirectory() as name, moto_server(Path(name) / "moto.log") as moto:
        folder = Path(name)
        account = Account.create(folder / "account", moto=moto).folder
        both = create_engine_for_dev_stack(folder, account), create_engine_for_one_bucket(folder, account)
        for engine in both:  # the first run writes bytecode
            time_preview(engine)
        rounds = [(time_preview(both[0]), time_preview(both[1])) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    return int(not print_ratio("preview", ours, theirs, most=LIMIT))


if __name__ == "__main__":
    sys.exit(main())
