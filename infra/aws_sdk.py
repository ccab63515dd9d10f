"""Load less of the AWS SDK: of each service only the files whose names the program uses.

`pulumi_aws` loads a service such as `aws.ec2` at the first use of a name in it, but then all of its files, which takes
as much CPU time as everything else that the program imports.
"""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Sequence
from importlib.abc import SourceLoader
from typing import Any

import pulumi_aws

SERVICES = (
    *("budgets", "cloudwatch", "ec2", "ecr", "efs", "eks", "iam", "kms", "resourcegroupstaggingapi"),
    *("route53", "s3", "ssm", "vpc"),
)
"""The services that the program uses."""


class Service(types.ModuleType):
    """A package of generated files that imports a file when a name in it is first used.

    If the SDK's rules for file names lead to no file with this name, the whole package is loaded, as without this
    class.
    """

    __loader__: SourceLoader

    def __getattr__(self, name: str) -> Any:
        """Return a name of the package that no file defines that was loaded so far."""
        if name == "outputs" or name.startswith("_"):  # files, which Python imports itself
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            file = importlib.import_module(f"{self.__name__}.{file_name(name)}")
            # All of its names, because the import has set the package's attribute get_vpc to the file get_vpc.py.
            vars(self).update({each: getattr(file, each) for each in file.__all__})
            return vars(self)[name]
        except (ModuleNotFoundError, AttributeError, KeyError):
            self.__class__ = types.ModuleType  # type: ignore[assignment]
            self.__loader__.exec_module(self)
            return getattr(self, name)


def file_name(name: str) -> str:
    """Return the file, without .py, that defines a class or function: `VpcEndpoint` → `vpc_endpoint`."""
    if name.endswith("Args"):  # arguments of a nested object; the program uses no others
        return "_inputs"
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.sub(r"^(get_.+)_(output|result)$", r"\1", words)


def load_on_demand(package: str = pulumi_aws.__name__, services: Sequence[str] = SERVICES) -> None:
    """Make services of the SDK that are not loaded yet load only what is used."""
    for name in services:
        service = sys.modules.get(f"{package}.{name}")
        # `_utilities` is the first import of every generated package.
        if service is not None and "_utilities" not in vars(service):
            service.__class__ = Service
