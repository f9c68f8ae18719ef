"""Freed arrays are kept: the next one of the size costs no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from resilient_ps.runtime.malloc import keep_freed_memory

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        held = [np.ones(1 << 20, np.uint8) for _ in range(16)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
faults(3)
print(faults(20))
"""


def page_faults(mode: str) -> int:
    run = subprocess.run(
        [sys.executable, "-c", FAULTS, mode], capture_output=True, text=True, check=False
    )
    if run.returncode == 3:
        pytest.skip("the C library is not glibc")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


def test_freed_arrays_are_used_again_without_page_faults() -> None:
    kept, given_back = page_faults("keep"), page_faults("default")
    assert kept < 100
    assert given_back > 10 * (kept + 1)  # the control: without it there are many
