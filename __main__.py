"""The Pulumi program.

Reads the stack's settings, checks them, and makes what they describe (see infra/stack.py).
"""

from __future__ import annotations

import gc
from pathlib import Path

import pulumi
from pulumi.runtime import config as engine_config

from infra import settings, stack
from infra.problems import SettingsError


def main() -> None:
    """Makes the stack, or ends with one message about everything that is wrong with its settings."""
    # The SDK's thousands of classes are made once and stay: looking for garbage among them, again and again,
    # takes a fifth of this program's time.
    gc.disable()
    project = pulumi.get_project()
    config = {**engine_config.get_config_env(), **engine_config.CONFIG.get()}
    try:
        chosen = settings.load(config, project)
        folder, region = Path(__file__).resolve().parent, config.get("aws:region", "")
        outputs = stack.build(chosen, project, pulumi.get_stack(), folder, region)
    except SettingsError as error:
        # One message without a stack trace: the mistake is in the settings, not in the program.
        raise pulumi.RunError(str(error)) from None
    for name, value in outputs.items():
        pulumi.export(name, value)


main()
