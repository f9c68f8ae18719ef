"""What a metrics system is told of namespaces."""

from __future__ import annotations

from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.figures import Figure
from resilient_ps.ids import Epoch, Position
from resilient_ps.messages import Command, Entry, Kind
from resilient_ps.namespace_figures import TOLD_MAX, namespace_figures
from resilient_ps.quotas import NO_END, Settle, Size
from resilient_ps.shard import Shard
from resilient_ps.tables.optimisers import SGD, Adagrad
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec


def shard_with(*specs: TableSpec, number: int = 0, shards: int = 1) -> Shard:
    shard = Shard(number, shards)
    for at, spec in enumerate(specs):
        say(shard, Command(Kind.OPEN_TABLE, table=at + 1, text=spec.to_json().encode()))
    return shard


def say(shard: Shard, command: Command) -> None:
    shard.apply(Entry(Position(Epoch(1, 1), shard.lsn + 1), command))


def by_name(figures: list[Figure]) -> dict[tuple[str, str], float]:
    return {(f.name, dict(f.labels).get("namespace", "")): f.value for f in figures}


def test_what_inner_namespaces_hold_is_in_the_outer_ones() -> None:
    shard = shard_with(
        DenseSpec("ctr/emb/w", (100,), "float32", Adagrad(0.1)),
        DenseSpec("ctr/b", (10,), "float64", SGD(0.1)),
        SparseSpec("alone", 1, "float32", SGD(0.1)),
    )
    told = by_name(namespace_figures([shard], {"ctr/emb": NamespaceRecord(7, None)}))
    assert told == {
        ("resilient_ps_namespaces_left_out", ""): 0,
        ("resilient_ps_namespace_rows", "ctr"): 0,
        ("resilient_ps_namespace_rows", "ctr/emb"): 0,
        ("resilient_ps_namespace_bytes", "ctr"): 880,
        ("resilient_ps_namespace_bytes", "ctr/emb"): 800,
        ("resilient_ps_namespace_rows_max", "ctr/emb"): 7,
    }


def test_of_very_many_namespaces_those_with_quotas_are_told_and_the_rest_is_counted() -> None:
    specs = [SparseSpec(f"n{at:03d}/t", 1, "float32", SGD(0.1)) for at in range(TOLD_MAX + 20)]
    shard = shard_with(*specs)
    last = specs[-1].name.removesuffix("/t")
    say(shard, Command(Kind.QUOTA, clock=1, text=Settle({last: NO_END}, (Size(0, 0),)).to_json()))
    figures = namespace_figures([shard], {})
    told = {dict(f.labels)["namespace"] for f in figures if f.labels}
    assert len(told) == TOLD_MAX
    assert last in told
    assert by_name(figures)["resilient_ps_namespaces_left_out", ""] == 20
