"""`bench checkpoint` measures, reports, and tells when a bar is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilient_ps.cli.bench.checkpoint import _as_json, _as_table
from resilient_ps.cli.bench.checkpoints import Measured, prepared
from resilient_ps.cli.bench.counts import compressible
from resilient_ps.cli.bench.plain_store import PlainStore
from resilient_ps.storage.runtime.open import open_store


def test_all_figures_are_measured_and_reported(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    store = open_store(url)
    with prepared(url, store, 4, lambda text: None) as bench:
        rows = [
            *bench.save_and_restore(1),
            *bench.second_checkpoints(),
            *bench.beside_training(1),
            bench.memory(),
        ]
    store.close()
    figures = {row.name: row for row in rows}
    assert len(figures) == len(rows) == 8
    assert all(row.values for row in rows)
    for distribution in ("uniform", "zipf"):
        assert 0.05 <= figures[f"second checkpoint after 5 % ({distribution})"].value <= 0.1
    for name in ("save", "restore", "training kept during a checkpoint"):
        assert min(figures[name].ours + figures[name].plain) > 0
    assert _as_table(rows).row_count == len(rows)
    told = _as_json(rows, 4, seconds=1.0)
    assert [row["name"] for row in told["rows"]] == [row.name for row in rows]


def test_a_state_that_compresses_is_measured_beside_puts_of_its_own_bytes(tmp_path: Path) -> None:
    with compressible(str(tmp_path / "store"), 16, lambda text: None) as bench:
        save, stored = bench.saves(1)
    assert bench.state_bytes == pytest.approx(4 << 20, rel=0.01)
    put = (tmp_path / "store" / "counts-plain").iterdir()
    assert sum(file.stat().st_size for file in put) == bench.state_bytes
    assert 0.02 < stored.value < 0.3
    assert min(save.ours + save.plain) > 0
    assert "MiB/s" in str(list(_as_table([save]).columns[1].cells))


@pytest.mark.parametrize("least", [True, False])
def test_a_missed_bar_is_told(least: bool) -> None:
    row = Measured("x", "x", 0.5, least=least, values=[0.1, 0.7, 0.9])
    assert row.holds is least
    assert Measured("x", "x", None, values=[1.0]).holds is None
    assert _as_json([row], 1, seconds=1.0)["holds"] is least


def test_plain_objects_are_put_and_got_at_the_pace_that_was_asked_for(tmp_path: Path) -> None:
    plain = PlainStore(str(tmp_path / "store"), threads=2)
    try:
        sizes = [100_000, 50_000, 1, 250_000]
        assert plain.put(sizes) > 0
        assert plain.get(sizes) > 0
        assert plain.put(sizes, bytes_per_s=500_000) > 0.3
    finally:
        plain.close()
    found = sorted((tmp_path / "store-plain").iterdir())
    assert [file.stat().st_size for file in found] == sizes
