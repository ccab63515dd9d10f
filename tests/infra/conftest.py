"""Fixtures of all tests that run the program with mocks."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(autouse=True)
def event_loop_of_the_main_thread() -> None:
    """Give the main thread an event loop: `pulumi.runtime.test` uses it, and `asyncio.run` removes it."""
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
