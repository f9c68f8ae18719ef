"""Compiled machines make the same runs as the sources, and are convicted of the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak  # compiles for minutes; the default run has `test_compiled_sources`

BUILDS_AT_MOST_S = 1_500
SCRIPT = """
import json, sys
from dataclasses import fields, replace
from resilient_ps.chaos.sim import run, setup
from resilient_ps.guards import ALL_GUARDS

def told(outcome):
    broken = sorted({finding.invariant for finding in outcome.findings})
    return [outcome.trace, outcome.verdict, outcome.steps, outcome.acknowledged, broken]

first, last = map(int, sys.argv[1:3])
for seed in range(first, last):
    for kind in ("safety", "liveness"):
        print(json.dumps([seed, kind, *told(run.run_seed(seed, kind=kind))]))
    with_wire = run.run_seed(seed, setup=setup.with_store(setup.Setup(), seed), wire=True)
    print(json.dumps([seed, "store, wire", *told(with_wire)]))
for field in fields(ALL_GUARDS):
    guards = replace(ALL_GUARDS, **{field.name: False})
    for seed in range(4):
        print(json.dumps([seed, field.name, *told(run.run_seed(seed, guards=guards))]))
print(json.dumps(run.__file__))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def simulate(cache: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "resilient_ps.cli.main", "simulate", "--json", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def runs(seeds: range, folder: Path | None) -> list[Any]:
    paths = {} if folder is None else {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, str(seeds.start), str(seeds.stop)],
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(BUILDS_AT_MOST_S)
def test_compiled_runs_are_the_same_runs_and_break_the_same_promises(cache: Path) -> None:
    arguments = ("--seeds", "3", "--jobs", "2")
    compiled = simulate(cache, "--compiled", *arguments)
    plain = simulate(cache, *arguments)
    assert (compiled["machines"], plain["machines"]) == ("compiled", "interpreted")
    for what in ("runs", "held", "faults", "acknowledged_pushes", "virtual_s"):
        assert compiled[what] == plain[what]
    (folder,) = (cache / "resilient-ps/compiled").iterdir()
    *expected, source = runs(range(100, 120), None)
    *found, library = runs(range(100, 120), folder)
    assert source.endswith("run.py")
    assert library.startswith(str(folder))
    assert not library.endswith(".py")
    assert found == expected
    convicted = {(what, *broken) for _, what, _, verdict, *_, broken in found if verdict == "false"}
    assert len({what for what, *_ in convicted}) >= 5  # rules that were switched off
