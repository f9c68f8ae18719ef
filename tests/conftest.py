"""Settings for all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A shared machine may stop for longer than hypothesis allows an example: nothing is timed here.
settings.register_profile("untimed", deadline=None)
if "CI" not in os.environ:  # there, hypothesis has a profile of its own: untimed and repeatable
    settings.load_profile("untimed")

# A shell without job control has SIGINT ignored in what runs in the background, and processes that
# tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESSES = 3  # for two cores: many tests wait for what other processes do
FILES_STAY_TOGETHER = {"contracts", "integration", "packaging"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Whole folders run on several processes; what names a file or a test runs in this one."""
    named = [arg.partition("::")[0] for arg in config.args]
    return 0 if any(Path(name).is_file() for name in named) else PROCESSES


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file that may share started services run one after the other, in one process.

    They are also given out before all others: so tests that wait for leases share the machine with
    tests that wait, and not with simulations that need all of it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path, _, _ = nodeid.partition("::")
            return path if set(Path(path).parts) & FILES_STAY_TOGETHER else nodeid

    return FilesTogether(config, log)
