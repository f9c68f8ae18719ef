"""Settings for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A shared machine may stop for longer than hypothesis allows an example: nothing is timed here.
settings.register_profile("untimed", deadline=None)
if "CI" not in os.environ:  # there, hypothesis has a profile of its own: untimed and repeatable
    settings.load_profile("untimed")

TESTS = Path(__file__).parent
PROCESSES = 3  # for two cores: many tests wait for what other processes do
FILES_STAY_TOGETHER = ("contracts", "integration", "packaging")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Whole folders run on several processes; what names a file or a test runs in this one."""
    named = [arg.partition("::")[0] for arg in config.args]
    return 0 if any(Path(name).is_file() for name in named) else PROCESSES


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file that may share started services run one after the other, in one process.

    They are also given out before all others: so tests that wait for leases share the machine with
    tests that wait, and not with simulations that need all of it.
    """
    for item in items:
        folder, *_ = item.path.relative_to(TESTS).parts
        if folder in FILES_STAY_TOGETHER:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
