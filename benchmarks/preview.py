"""`pulumi preview` of stack `dev` against `pulumi preview` of a program with one bucket.

Prints `preview ratio=… ours=… theirs=…` (wall seconds; at most 3 is allowed). The same engine, the same
emulated account, the same machine; the runs alternate. Everything is as for a person: the engine starts the
program, the plugin (tests/aws_emulator, in place of AWS's) and pip anew each time. Nothing is deployed, so
that each preview plans to make everything; `dev` has an image here, so that the release is among it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from tests.aws_emulator.account import Account  # noqa: E402
from tests.aws_emulator.workbench import Engine, moto_server  # noqa: E402
from tests.infra_emulated import program  # noqa: E402

ROUNDS = 5
LIMIT = 3.0
BUCKET = 'import pulumi_aws as aws\naws.s3.Bucket("one")\n'


def dev(folder: Path, account: Path) -> Engine:
    """This repository's program with stack `dev`."""
    project = program.copy(folder / "dev")
    program.add_stack(project, "dev")
    engine = Engine(project, "dev", folder / "home", account, starts_plugin=True).init()
    engine.config("paddle-training:image=registry.example/launcher@sha256:" + "0" * 64)
    return engine


def bucket(folder: Path, account: Path) -> Engine:
    """A program with one bucket."""
    project = folder / "bucket"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: bucket\nruntime: python\n", encoding="utf-8")
    (project / "__main__.py").write_text(BUCKET, encoding="utf-8")
    engine = Engine(project, "one", folder / "home", account, starts_plugin=True).init()
    engine.config("aws:region=us-west-2")
    return engine


def preview(engine: Engine) -> float:
    """Wall seconds of one preview."""
    began = time.monotonic()
    done = engine.preview()
    wall = time.monotonic() - began
    assert done.code == 0, done.text
    assert set(done.ops) == {"create"}, done.ops
    return wall


def main() -> int:
    with tempfile.TemporaryDirectory() as name, moto_server(Path(name) / "moto.log") as moto:
        folder = Path(name)
        account = Account.create(folder / "account", moto=moto).folder
        both = dev(folder, account), bucket(folder, account)
        for engine in both:  # the first run writes bytecode
            preview(engine)
        rounds = [(preview(both[0]), preview(both[1])) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"preview ratio={ours / theirs:.2f} ours={ours:.2f}s theirs={theirs:.2f}s")
    return int(ours / theirs > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
