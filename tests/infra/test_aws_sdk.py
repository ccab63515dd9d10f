"""The AWS SDK on demand: names of the SDK stay the same, and files that the program does not use are not loaded."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from infra import aws_sdk

from .recording_mocks import ROOT

NAME = "generated_sdk"
USED = sorted(
    {
        found
        for path in (ROOT / "infra").glob("*.py")
        for found in re.findall(r"\baws\.(\w+)\.(\w+)", path.read_text(encoding="utf-8"))
    }
)
CHECK = """
import importlib, sys
import pulumi_aws as aws
from infra import target_aws
for service, name in %r:
    found = getattr(getattr(aws, service), name)
    assert found is getattr(getattr(aws, service), name), name
    assert found.__name__ == name, name
print([name for name in ("pulumi_aws.ec2.ami", "pulumi_aws.s3.inventory") if name in sys.modules])
"""


def test_program_loads_only_files_that_it_uses() -> None:
    command = [sys.executable, "-W", "error", "-c", CHECK % USED]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[]"


def test_services_are_those_of_the_program() -> None:
    assert sorted(aws_sdk.SERVICES) == sorted({service for service, _ in USED})


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Write a package like the SDK's, import it, and yield its service `shop`, which is loaded on demand."""
    files = {
        "__init__": f"from pulumi._utils import lazy_import\nshop = lazy_import('{NAME}.shop')",
        "_utilities": "",
        "shop/__init__": "from .. import _utilities\nfrom .get_price import *\nfrom .other import *",
        "shop/get_price": "__all__ = ['get_price', 'get_price_output']\nget_price = get_price_output = print",
        "shop/other": "__all__ = ['Odd']\nOdd = int",
    }
    (tmp_path / NAME / "shop").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / NAME / f"{name}.py").write_text(f"{text}\n")
    monkeypatch.syspath_prepend(tmp_path)
    package = importlib.import_module(NAME)
    aws_sdk.load_on_demand(NAME, ["shop"])
    yield package.shop
    for name in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[name]


def test_function_with_the_name_of_its_file_stays_a_function(shop: ModuleType) -> None:
    assert (shop.get_price_output, shop.get_price) == (print, print)
    assert f"{NAME}.shop.other" not in sys.modules


def test_name_in_a_file_with_another_name_loads_the_whole_service(shop: ModuleType) -> None:
    assert shop.Odd is int
    assert f"{NAME}.shop.get_price" in sys.modules
    with pytest.raises(AttributeError, match="Missing"):
        _ = shop.Missing


def test_service_that_is_loaded_stays_as_it_is(shop: ModuleType) -> None:
    assert shop.Odd is int
    aws_sdk.load_on_demand(NAME, ["shop"])
    assert type(shop) is ModuleType
