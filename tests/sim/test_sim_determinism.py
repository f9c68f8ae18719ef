"""The same seed gives the same run, also in another process with other hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sim_runs import MILLISECOND_NS, CountersRun

from resilient_ps.chaos.sim.faults import break_connections
from resilient_ps.consistency import SSP


def eventful_run(seed: int) -> str:
    """Broken connections, a takeover, a join: the trace of it all, and what is held in the end."""
    run = CountersRun(seed, SSP(1), observed=4)
    until_ns = run.world.now_ns + 30 * MILLISECOND_NS
    break_connections(run.world, seed, every_ns=2 * MILLISECOND_NS, until_ns=until_ns)
    workers = run.spawn_all()
    assert run.world.run_until(lambda: workers[0].clock == 3)
    run.world.kill(workers[1].process)
    run.spawn(1)
    number = run.cluster.propose("join", run.job, 3)
    assert run.world.run_until(lambda: run.cluster.intent(number).state == "done")
    run.spawn(3)
    run.run()
    return " ".join([run.world.trace, str(run.world.steps), *run.cluster.digests(2)])


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    first = eventful_run(1)
    assert eventful_run(1) == first
    assert eventful_run(2).split()[0] != first.split()[0]


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    code = "import test_sim_determinism as t; print(t.eventful_run(1))"
    here = Path(__file__).parent
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=here,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in range(2)
    ]
    traces = [process.communicate(timeout=100)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert set(traces) == {eventful_run(1)}
