"""The Pulumi program: read the stack's settings, check them, and create its resources."""

from __future__ import annotations

import gc
from pathlib import Path

import pulumi
from pulumi.runtime import config as engine_config

from infra.settings import SettingsError, load_settings
from infra.stack_builder import build_stack


def main() -> None:
    """Create the resources of the stack that the engine runs, and export its outputs.

    Raises:
        pulumi.RunError: the settings are invalid; the message lists every mistake, and no resource was registered.
    """
    # The SDK creates thousands of classes that live until the end. Garbage collection would search them again
    # and again, which takes a fifth of the program's time.
    gc.disable()
    folder = Path(__file__).resolve().parent
    config = {**engine_config.get_config_env(), **engine_config.CONFIG.get()}
    try:
        settings = load_settings(config, filter(engine_config.is_config_secret, config))
        outputs = build_stack(settings, pulumi.get_project(), pulumi.get_stack(), folder)
    except SettingsError as error:
        # RunError prints the message without a stack trace: the mistake is in the settings.
        raise pulumi.RunError(str(error)) from None
    for name, value in outputs.items():
        pulumi.export(name, value)
    # Otherwise the interpreter would search these classes once more when it exits, which takes another fifth.
    gc.freeze()


main()
