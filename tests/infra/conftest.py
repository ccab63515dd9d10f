"""What every test of the program's mocks needs."""

from __future__ import annotations

import asyncio

import pytest


@pytest.fixture(autouse=True)
def event_loop_of_the_main_thread() -> None:
    """`pulumi.runtime.test` takes the thread's loop; after an `asyncio.run` of another test there is none."""
    try:
        asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        asyncio.set_event_loop(asyncio.new_event_loop())
