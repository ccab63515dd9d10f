"""Fixtures of all tests that run the program with mocks."""

from __future__ import annotations

import asyncio

import pytest

from infra import training


@pytest.fixture(autouse=True)
def event_loop_of_the_main_thread() -> None:
    """Give the main thread an event loop: `pulumi.runtime.test` uses it, and `asyncio.run` removes it."""
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())


@pytest.fixture(autouse=True)
def no_release_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the cluster have no release, so that no test contacts an API server."""
    monkeypatch.setattr(training, "read_revisions", lambda *where: [])
