"""Fixtures for the tests of plots and report: the folder of a complete run."""

from tests.launcher.cli.conftest import job_folder  # noqa: F401 - a fixture
