"""The examples of task graphs run, in several processes, and do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import CLUSTER, PATIENCE_S, Hurt, hurt_cluster

from resilient_ps.client.connection import CLUSTER_VARIABLE, ETCD_VARIABLE
from resilient_ps.runtime.spawn import spawn

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def hurt() -> Iterator[Hurt]:
    with hurt_cluster(2) as hurt:
        yield hurt


def test_the_wavefront_of_two_processes_is_identical_to_the_serial_order(
    hurt: Hurt, tmp_path: Path
) -> None:
    where = {ETCD_VARIABLE: hurt.endpoints, CLUSTER_VARIABLE: CLUSTER}
    command = [sys.executable, str(EXAMPLES / "wavefront.py"), "--epochs", "2"]
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += [spawn(command, log, environment=where) for log in logs]
        for process, log in zip(running, logs, strict=True):
            assert process.wait(PATIENCE_S) == 0, log.read_text()
            assert "\nidentical to the serial order\n" in log.read_text()
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_the_example_of_two_parts_runs_and_is_that_of_the_readme() -> None:
    (shown,) = re.findall(r"```python tasks\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert (EXAMPLES / "two_parts.py").read_text().endswith(shown)
    command = [sys.executable, str(EXAMPLES / "two_parts.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("[")
