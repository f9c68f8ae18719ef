"""Settings for all tests."""

from __future__ import annotations

import functools
import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A shared machine may stop for longer than hypothesis allows an example: nothing is timed here.
# (In CI, hypothesis begins with a profile that is repeatable besides; this is added to it.)
settings.register_profile("untimed", deadline=None, max_examples=40)
settings.load_profile("untimed")

# A shell without job control has SIGINT ignored in what runs in the background, and processes that
# tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each of hundreds of processes would begin with threads for linear algebra, which spin for a while.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

gc.disable()  # until all tests are found: what is made meanwhile stays

PROCESSES = 4  # for two cores: three for tests that wait for other processes, one that computes
WAITING = {"contracts", "integration"}  # folders whose tests wait for processes, and for leases
APART = "sim"  # a folder whose tests share nothing: those of a file need not stay together
BEGIN_FIRST = (  # so that nobody is left alone with them at the end
    "test_blob_contract.py",
    "test_distribution.py",
    "test_cold_standby.py",
    "test_compose_processes.py",
    "test_train_resume.py",
    "test_click_models.py",
    "test_tasks.py",
    "test_factor_models.py",
    "test_etcd_troubles.py",
    "test_live_workloads.py",
)
YIELDS = 5  # niceness of the process that computes: it has what the others leave


def pytest_collection_finish() -> None:
    """Look for garbage again, but not in what stays, and not all the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Whole folders run on several processes; what names a file or a test runs in this one."""
    named = [arg.partition("::")[0] for arg in config.args]
    return 0 if any(Path(name).is_file() for name in named) else PROCESSES


def computes(process: str, of: int) -> bool:
    """Is this the process that is for tests that wait for nobody? There is none among few."""
    return of >= PROCESSES and process == f"gw{of - 1}"


if computes(
    os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.getenv("PYTEST_XDIST_WORKER_COUNT", 0))
):
    os.setpriority(os.PRIO_PROCESS, 0, YIELDS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file, which may share started services, run one after the other in one process.

    Tests that wait for processes and their leases are given out before all others, and share the
    machine with each other; all the while one process that yields to them does those that compute.
    """
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path, _, _ = nodeid.partition("::")
            return nodeid if APART in Path(path).parts else path

        def _next_for(self, node: Any) -> str | None:
            """The file, or the test, that this process does next; none if there is none for it."""
            alone = computes(node.gateway.id, self.numnodes)
            fit = [scope for scope in self.workqueue if not (alone and waits(scope))]
            return min(fit, key=lambda scope: (waits(scope) == alone, rank_of(scope)), default=None)

        def _assign_work_unit(self, node: Any) -> None:
            scope = self._next_for(node)
            if scope is None:
                node.shutdown()
            else:
                self.workqueue.move_to_end(scope, last=False)
                super()._assign_work_unit(node)

    return FilesTogether(config, log)


@functools.cache
def waits(scope: str) -> bool:
    """Is it a file with tests that wait for other processes?"""
    return bool(set(Path(scope).parts) & WAITING)


@functools.cache
def rank_of(scope: str) -> int:
    """Those that take long come first; the others in the order in which they were found."""
    name = Path(scope).name
    return BEGIN_FIRST.index(name) if name in BEGIN_FIRST else len(BEGIN_FIRST)
