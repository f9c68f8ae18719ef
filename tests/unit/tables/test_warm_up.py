"""Compilation happens in the warm-up or not at all, and its results are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import resilient_ps.tables
from resilient_ps.engine import ENGINE
from resilient_ps.tables import compiled
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.initialisers import Normal
from resilient_ps.tables.optimisers import FTRL, Adam, Sum
from resilient_ps.tables.partition import gather_rows, partition
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DTYPES, DenseSpec, SparseSpec
from resilient_ps.tables.warm_up import (
    WarmUp,
    client_kernels,
    server_kernels,
    warm_up,
    warm_up_client,
)


def signatures() -> list[int]:
    return [len(kernel.signatures) for kernel in (*server_kernels(), *client_kernels())]


@pytest.mark.skipif(ENGINE == "numba", reason="numba is in use")
def test_with_the_native_module_there_is_nothing_to_do_and_numba_is_not_imported() -> None:
    assert warm_up() == warm_up_client() == WarmUp(0, 0, 0)
    program = "import sys, resilient_ps.node, resilient_ps.split; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"


@pytest.mark.skipif(ENGINE == "native", reason="the native module is in use")
def test_nothing_is_compiled_after_the_warm_up() -> None:
    lines: list[str] = []
    warm_up(progress=lines.append)
    warm_up_client(progress=lines.append)
    assert lines == [*(f"kernels for {dtype} tables" for dtype in DTYPES), "kernels of the client"]
    before = signatures()
    for dtype in DTYPES:
        use_everything(dtype)
    assert signatures() == before
    again = warm_up()
    assert (again.compiled, again.loaded) == (0, 0)
    assert again.kernels == sum(before[: len(server_kernels())])


def use_everything(dtype: str) -> None:
    for optimiser in (Sum(),) if dtype == "int64" else (Sum(), Adam(), FTRL(alpha=0.1)):
        initialiser = {} if dtype == "int64" else {"initialiser": Normal(1.0)}
        spec = SparseSpec("t", 7, dtype, optimiser, **initialiser)  # type: ignore[arg-type]
        shard = SparseShard(spec)
        keys = np.arange(5000, dtype=np.uint64)
        grads = np.ones((5000, 7), dtype)
        order, _, grouped = partition(keys, 3, np.arange(3, dtype=np.int32))
        shard.push(grouped, gather_rows(grads, order, np.empty_like(grads)))
        shard.push(np.frombuffer(keys.tobytes(), np.uint64), grads)
        shard.pull(keys)
        shard.digest()
        dense_spec = DenseSpec("t", (9, 3), dtype, optimiser)  # type: ignore[arg-type]
        dense = DenseShard(dense_spec, DenseLayout(dense_spec, 1), 0)
        dense.push(dense.blocks, np.ones(27, dtype))
        dense.pull(dense.blocks)


PROGRAM = """
import numba
from resilient_ps.tables import compiled
@compiled.kernel
def double(x):
    return 2 * x
assert double(21) == 42
print(sum(double.stats.cache_hits.values()), compiled.SOURCES_STAMP)
"""


def run_elsewhere(root: Path, cache: Path) -> list[str]:
    """Run PROGRAM with the package copied to `root` and numba's own folders in `cache`."""
    program = root / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(root), "HOME": str(cache)}
    environment["XDG_CACHE_HOME"] = str(cache)
    environment.pop("NUMBA_CACHE_DIR", None)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def copy_package(root: Path) -> Path:
    folder = root / "resilient_ps" / "tables"
    folder.mkdir(parents=True)
    (root / "resilient_ps" / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    for name in ("compiled.py", "lanes.py"):
        shutil.copy(Path(resilient_ps.tables.__file__).parent / name, folder / name)
    return folder


def test_a_change_in_any_source_makes_all_cached_kernels_stale(tmp_path: Path) -> None:
    """numba itself would look at the file of the kernel only, not at what the kernel calls."""
    folder = copy_package(tmp_path)
    first = run_elsewhere(tmp_path, tmp_path / "cache")
    second = run_elsewhere(tmp_path, tmp_path / "cache")
    assert (first[0], second[0]) == ("0", "1"), "compiled, then loaded"
    with (folder / "lanes.py").open("a") as source:
        source.write("# another formula\n")
    third = run_elsewhere(tmp_path, tmp_path / "cache")
    assert third[0] == "0", "compiled again"
    assert third[1] != first[1]


def test_kernels_work_where_nothing_can_be_written(tmp_path: Path) -> None:
    copy_package(tmp_path)
    blocked = tmp_path / "no-folder"
    blocked.write_text("a file where a cache folder would be")
    (tmp_path / "__pycache__").write_text("also a file")
    runs = [run_elsewhere(tmp_path, blocked)[0] for _ in range(2)]
    assert runs == ["0", "0"], "compiled at every start"


def test_the_stamp_covers_every_source_of_the_package() -> None:
    assert len(compiled.SOURCES_STAMP) == 32
    assert compiled._stamp_of_sources() == compiled.SOURCES_STAMP
