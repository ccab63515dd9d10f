"""Put this folder on the import path, for `chart_tools`; fixtures of the tests on the local cluster."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.paths import KUBECONFIG

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[None]:
    """Point kubectl and helm at the local cluster, whatever KUBECONFIG the shell has."""
    if not KUBECONFIG.exists():
        pytest.fail(f"there is no local cluster ({KUBECONFIG} is missing); start it with `make cluster`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(KUBECONFIG))
        yield


@pytest.fixture(scope="module")
def namespace(local_cluster: None) -> Iterator[str]:
    """Create a namespace on the local cluster for the tests of a module."""
    from chart_tools import new_namespace

    with new_namespace() as name:
        yield name
