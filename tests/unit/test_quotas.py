"""Quotas on shards: nothing ever goes beyond, replicas agree, and nearly all of it can be used."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.consistency import ASP, BSP, Consistency, JobSpec, Tasks
from resilient_ps.coordinator.quotas import allowed_by, divide, is_uneven
from resilient_ps.errors import BadInput
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import READER, Epoch, Position, WorkerId
from resilient_ps.messages import NO_KEYS, Command, Entry, Kind, PartAnswer, Status
from resilient_ps.quota_admission import about_used, refusal, with_use
from resilient_ps.quotas import (
    NOTHING,
    WITHOUT_END,
    Give,
    Given,
    Quotas,
    Settle,
    Size,
    said_in,
    size_of,
)
from resilient_ps.replication.log import Log
from resilient_ps.shard import Shard
from resilient_ps.tables.optimisers import SGD, Adagrad
from resilient_ps.tables.spec import DenseSpec, SparseSpec, TableSpec

EPOCH = Epoch(1, 1)
TABLES: dict[int, TableSpec] = {
    1: SparseSpec("ctr/emb/user", 2, "float32", SGD(0.1)),
    2: SparseSpec("ctr/emb/item", 1, "float32", Adagrad(0.1)),
    3: SparseSpec("ctr/embers", 1, "float32", SGD(0.1)),  # not in ctr/emb
    4: SparseSpec("other", 1, "float32", SGD(0.1)),
}
ROW_BYTES = {1: 8 + 2 * 4, 2: 8 + 2 * 4, 3: 8 + 4, 4: 8 + 4}


def no_end(rows: int) -> Size:
    return Size(rows, WITHOUT_END)


@dataclass
class Copy:
    """A shard as its primary has it, its log, and a backup that applies the same entries."""

    number: int
    shards: int
    shard: Shard = field(init=False)
    backup: Shard = field(init=False)
    log: Log = field(default_factory=Log)
    answers: list[PartAnswer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shard, self.backup = (Shard(self.number, self.shards, ALL_GUARDS) for _ in range(2))

    def write(self, command: Command, *, apply: bool = True) -> PartAnswer | None:
        """As a primary does: asked first, appended, and applied, now or later."""
        if command.kind is Kind.QUOTA:
            command = with_use(self.shard, self.log, command)
        begins = any(entry.command.kind is Kind.QUOTA for entry in self.log.pending())
        no = refusal(self.shard, self.log, command, begins=begins)
        if no is not None:
            return no
        self.log.append(Entry(Position(EPOCH, self.log.last + 1), command))
        return self.apply() if apply else None

    def apply(self) -> PartAnswer | None:
        """All that is under way takes effect."""
        answer = None
        while len(self.log):
            entry = self.log.take()
            answer = self.shard.apply(entry)
            assert self.backup.apply(entry)._replace(at=answer.at) == answer
        return answer

    def apply_one(self) -> None:
        """The first that is under way takes effect."""
        if len(self.log):
            entry = self.log.take()
            self.shard.apply(entry)
            self.backup.apply(entry)

    def used(self, path: str) -> Size:
        """Counted anew, from what is in tables and held back."""
        rows = nbytes = 0
        for number, table in self.shard.tables.items():
            if not table.spec.name.startswith(path + "/"):
                continue
            if not table.is_sparse:
                nbytes += table.size_with(0).nbytes
                continue
            keys = set(table.rows_held.keys().tolist())
            for job in self.shard.jobs.values():
                for _, _, update in job.barrier.held():
                    keys |= set(update.keys.tolist()) if update.table == number else set()
            rows, nbytes = rows + len(keys), nbytes + len(keys) * ROW_BYTES[number]
        return Size(rows, nbytes)


class Cluster:
    """Some shards, a job on them, and whoever divides the quotas."""

    def __init__(self, shards: int, mode: Consistency) -> None:
        self.copies = [Copy(number, shards) for number in range(shards)]
        self.round = 0
        self.clock, self.n = 1, 0
        self.allowed: dict[str, dict[int, Size]] = {}
        text = JobSpec(1, "job", 1, mode).to_json().encode()
        for copy in self.copies:
            copy.write(Command(Kind.OPEN_JOB, WorkerId(1, 0, 0), text=text))
            copy.write(Command(Kind.FENCE, WorkerId(1, 0, 1)))
            for number, spec in TABLES.items():
                copy.write(Command(Kind.OPEN_TABLE, table=number, text=spec.to_json().encode()))

    def divide(self, most: dict[str, Size], *, applies: bool = True) -> None:
        """A whole round, with what shards put off."""
        self.round += 1
        wanted = {
            path: {c.number: c.shard.quotas.wants[path] for c in self.copies
                   if path in c.shard.quotas.wants}
            for path in most
        }  # fmt: skip
        used: dict[str, dict[int, Size]] = {path: {} for path in most}
        for copy in self.copies:
            answer = copy.write(Command(Kind.QUOTA, clock=self.round, text=Settle(most).to_json()))
            assert answer is not None
            assert answer.status is Status.OK
            for path, size in zip(sorted(most), sizes(answer), strict=True):
                used[path][copy.number] = size
        given = {path: divide(most[path], used[path], wanted[path]) for path in sorted(most)}
        for copy in self.copies:
            text = Give(tuple(given.values())).to_json()
            copy.write(Command(Kind.QUOTA, clock=self.round, text=text), apply=applies)
        self.allowed = {path: dict(allowed_by(given[path], used[path])) for path in most}

    def push(
        self, shard: int, table: int, keys: list[int], *, apply: bool = True
    ) -> PartAnswer | None:
        """One part of a push; a repeat of a clock's number goes nowhere else."""
        copy, width = self.copies[shard], 2 if table == 1 else 1
        record = copy.shard.jobs[1].ledger.ranks[0]
        pending = [e.command.n for e in copy.log.pending() if e.command.kind is Kind.PUSH]
        last = max([record.last, *pending])
        values = np.ones(len(keys) * width, np.float32)
        command = Command(
            Kind.PUSH, WorkerId(1, 0, 1), record.ticked + 1, last + 1, last, table,
            keys=np.array(keys, np.uint64), values=values,
        )  # fmt: skip
        return copy.write(command, apply=apply)

    def open_tables(self, elements: int) -> None:
        """A small dense table more, if there is room."""
        number = 100 + max(0, *(max(copy.shard.tables) for copy in self.copies))
        spec = DenseSpec(f"ctr/emb/d{number}", (8 * elements + 1,), "float32", SGD(0.1))
        for copy in self.copies:
            opening = Command(Kind.OPEN_TABLE, table=number, text=spec.to_json().encode())
            copy.write(opening, apply=False)

    def tick(self) -> None:
        for copy in self.copies:
            copy.apply()
            record = copy.shard.jobs[1].ledger.ranks[0]
            command = Command(
                Kind.TICK, WorkerId(1, 0, 1), record.ticked + 1, prev=record.last, settled=True
            )
            copy.write(command)

    def total(self, path: str) -> Size:
        total = NOTHING
        for copy in self.copies:
            total = total.plus(copy.used(path))
        return total


def sizes(answer: PartAnswer) -> list[Size]:
    return [size_of(size) for size in json.loads(answer.text)]


@pytest.mark.parametrize("mode", [ASP(), BSP(), Tasks()], ids=["asp", "bsp", "tasks"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_namespace_never_holds_more_than_its_quota_and_replicas_agree(
    mode: Consistency, data: st.DataObject
) -> None:
    shards = data.draw(st.integers(1, 3))
    cluster = Cluster(shards, mode)
    most = {
        "ctr": Size(data.draw(st.integers(0, 80)), data.draw(st.integers(0, 2_000))),
        "ctr/emb": no_end(data.draw(st.integers(0, 50))),
    }
    cluster.divide(most)
    kinds = ["push", "push", "push", "late", "late", "apply", "tick", "divide", "open", "halfway"]
    steps = st.sampled_from(kinds)
    for step in data.draw(st.lists(steps, max_size=30)):
        shard = data.draw(st.integers(0, shards - 1))
        if step in ("push", "late"):
            keys = data.draw(st.lists(st.integers(0, 60), max_size=12))
            cluster.push(
                shard, data.draw(st.sampled_from([1, 2, 3, 4])), keys, apply=step == "push"
            )
        elif step == "apply":
            cluster.copies[shard].apply()
        elif step == "tick":
            cluster.tick()
        elif step == "open":
            cluster.open_tables(data.draw(st.integers(0, 3)))
        elif step == "halfway":
            cluster.copies[shard].apply_one()
        else:
            cluster.divide(most)
        for path, bound in most.items():
            assert not cluster.total(path).less(bound)
            for copy in cluster.copies:
                if path in copy.shard.quotas.by_path:
                    assert not copy.used(path).less(copy.shard.quotas.by_path[path].allowed)
    for copy in cluster.copies:
        copy.apply()
        assert copy.shard.digest() == copy.backup.digest()
        told = [size for size, _ in about_used(copy.shard, copy.log)]
        for path, size in zip(sorted(most), told, strict=True):
            assert not copy.used(path).less(size)


@pytest.mark.parametrize("mode", [ASP(), BSP()], ids=["asp", "bsp"])
def test_without_looking_before_entries_are_made_a_quota_would_be_exceeded(
    mode: Consistency, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_quotas.refusal", lambda *_, **__: None)
    cluster = Cluster(2, mode)
    cluster.divide({"ctr": no_end(10)})
    cluster.push(0, 1, list(range(12)))
    assert cluster.total("ctr").rows > 10


def test_a_quota_can_be_used_wholly_though_keys_come_to_one_shard_only() -> None:
    cluster, most = Cluster(4, ASP()), {"ctr": no_end(1_000)}
    cluster.divide(most)
    key = 0
    for _ in range(300):
        answer = cluster.push(0, 1, list(range(key, key + 10)))
        assert answer is not None
        if answer.status is Status.OK:
            key += 10
        elif answer.status is Status.BUSY:
            cluster.divide(most)
        else:
            break
    assert answer.status is Status.QUOTA
    assert cluster.total("ctr").rows == 1_000


def test_what_is_refused_names_namespace_quota_use_and_remedy_and_changes_nothing() -> None:
    cluster, most = Cluster(2, ASP()), {"ctr/emb": no_end(5)}
    cluster.divide(most)
    cluster.push(0, 1, [1, 2])
    before = cluster.copies[0].shard.digest()
    assert busy(cluster.push(0, 1, list(range(10, 20))))
    cluster.divide(most)
    answer = cluster.push(0, 1, list(range(10, 20)))
    assert answer is not None
    assert answer.status is Status.QUOTA
    text = answer.text.decode()
    for told in ("'ctr/emb'", "2 of 5 rows (rows_max)", "ns set ctr/emb", "ns show ctr/emb"):
        assert told in text
    assert cluster.copies[0].used("ctr/emb").rows == 2
    assert cluster.copies[0].shard.jobs[1].ledger.ranks[0].last == 1
    assert before != cluster.copies[0].shard.digest()  # the round was written down


def busy(answer: PartAnswer | None) -> bool:
    return answer is not None and answer.status is Status.BUSY


def test_rows_that_exist_can_be_pushed_to_when_nothing_can_be_created() -> None:
    cluster = Cluster(1, ASP())
    cluster.push(0, 1, [1, 2, 3])
    cluster.divide({"ctr": no_end(0)})
    answer = cluster.push(0, 1, [3, 2, 1, 1])
    assert answer is not None
    assert answer.status is Status.OK
    assert busy(cluster.push(0, 1, [4]))
    answer = cluster.push(0, 4, [4, 5, 6])  # another namespace
    assert answer is not None
    assert answer.status is Status.OK


def test_what_is_held_back_and_what_is_under_way_counts() -> None:
    cluster = Cluster(1, BSP())
    cluster.divide({"ctr": no_end(10)})
    cluster.push(0, 1, [1, 2, 3, 4])
    assert cluster.push(0, 1, [3, 4, 5, 6], apply=False) is None
    assert busy(cluster.push(0, 1, [10, 11, 12, 13, 14]))
    assert cluster.push(0, 1, [10, 11, 12, 13], apply=False) is None
    cluster.tick()
    assert cluster.total("ctr").rows == 10


def test_a_repeat_is_no_growth() -> None:
    cluster = Cluster(1, ASP())
    cluster.divide({"ctr": no_end(3)})
    cluster.push(0, 1, [1, 2, 3], apply=False)
    copy = cluster.copies[0]
    repeated = next(iter(copy.log.pending())).command
    assert copy.write(repeated, apply=False) is None
    answer = copy.apply()
    assert answer is not None
    assert answer.status is Status.OK
    assert cluster.total("ctr").rows == 3


def test_a_dense_table_counts_when_it_is_made() -> None:
    cluster, most = Cluster(1, ASP()), {"ctr": Size(WITHOUT_END, 10_000)}
    cluster.divide(most)
    spec = DenseSpec("ctr/dense", (1_000,), "float32", Adagrad(0.1))  # 8,000 bytes with its state
    command = Command(Kind.OPEN_TABLE, table=9, text=spec.to_json().encode())
    assert cluster.copies[0].write(command, apply=False) is None
    more = DenseSpec("ctr/more", (1_000,), "float32", SGD(0.1))
    later = Command(Kind.OPEN_TABLE, table=10, text=more.to_json().encode())
    assert busy(cluster.copies[0].write(later))
    cluster.copies[0].apply()
    cluster.divide(most)
    answer = cluster.copies[0].write(later)
    assert answer is not None
    assert answer.status is Status.QUOTA
    assert "this dense table takes 2,000 more" in answer.text.decode()
    assert cluster.copies[0].write(command) is not None  # it is there already


def test_nothing_grows_while_a_round_is_under_way() -> None:
    cluster = Cluster(1, ASP())
    cluster.divide({"ctr": no_end(100)}, applies=False)  # settled, and not given yet
    copy = cluster.copies[0]
    assert busy(cluster.push(0, 1, [1]))
    copy.apply()
    answer = cluster.push(0, 1, [1])
    assert answer is not None
    assert answer.status is Status.OK


def test_a_first_quota_counts_from_the_moment_it_is_appended() -> None:
    cluster = Cluster(1, ASP())
    copy = cluster.copies[0]
    text = Settle({"ctr": no_end(10)}).to_json()
    copy.write(Command(Kind.QUOTA, clock=7, text=text), apply=False)
    assert busy(cluster.push(0, 1, [1]))


def test_a_table_that_is_opened_before_a_first_quota_is_applied_does_not_grow_unseen() -> None:
    cluster = Cluster(1, ASP())
    copy, worker = cluster.copies[0], WorkerId(1, 0, 1)
    spec = SparseSpec("ctr/late", 1, "float32", SGD(0.1))
    copy.write(Command(Kind.OPEN_TABLE, table=9, text=spec.to_json().encode()), apply=False)
    settle = Settle({"ctr": no_end(10)}).to_json()
    copy.write(Command(Kind.QUOTA, clock=7, text=settle), apply=False)
    copy.shard.apply(copy.log.take())  # the table alone
    ones = np.ones(1, np.float32)
    keys = np.array([5], np.uint64)
    push = Command(Kind.PUSH, worker, 1, 1, 0, 9, keys=keys, values=ones)
    assert busy(copy.write(push, apply=False))


def test_who_lacks_something_waits_again_when_something_has_become_less() -> None:
    cluster, most = Cluster(1, ASP()), {"ctr": no_end(4)}
    cluster.divide(most)
    cluster.push(0, 2, [1, 2, 3])
    assert busy(cluster.push(0, 1, [5, 6]))
    cluster.divide(most)
    answer = cluster.push(0, 1, [5, 6])
    assert answer is not None
    assert answer.status is Status.QUOTA
    cluster.copies[0].write(Command(Kind.DROP_TABLE, table=2))
    answer = cluster.push(0, 1, [5, 6])
    assert answer is not None
    assert answer.status is Status.OK


def test_an_earlier_round_changes_nothing() -> None:
    cluster = Cluster(1, ASP())
    cluster.divide({"ctr": no_end(10)})
    copy, more = cluster.copies[0], Give((Given(NOTHING, no_end(500)),))
    for clock, said in ((0, more), (1, more), (2, more), (0, Settle({"ctr": no_end(500)}))):
        copy.write(Command(Kind.QUOTA, clock=clock, text=said.to_json()))
    assert copy.shard.quotas.by_path["ctr"].allowed.rows == 10
    assert copy.shard.quotas.round == 1


def test_a_quota_that_is_not_named_any_more_is_gone() -> None:
    cluster = Cluster(1, ASP())
    cluster.divide({"ctr": no_end(1)})
    assert busy(cluster.push(0, 1, [1, 2]))
    cluster.divide({})
    answer = cluster.push(0, 1, [1, 2])
    assert answer is not None
    assert answer.status is Status.OK


# -- dividing


SIZES = st.builds(Size, st.integers(0, 200), st.integers(0, 200))
BY_SHARD = st.dictionaries(st.integers(0, 5), SIZES, min_size=1)


@given(SIZES, BY_SHARD, BY_SHARD)
def test_what_is_given_out_is_what_is_free_at_most_and_nearly_all_of_it(
    most: Size, used: dict[int, Size], wanted: dict[int, Size]
) -> None:
    given = divide(most, used, wanted)
    allowed = allowed_by(given, used)
    for measure in range(2):
        have = sum(size[measure] for size in used.values())
        may = sum(size[measure] for size in allowed.values())
        assert have <= may <= max(most[measure], have)
        assert may > most[measure] - len(used)  # of each shard less than one is left over
    for shard, size in used.items():
        assert not size.less(allowed[shard])
        lack = wanted.get(shard, NOTHING).less(allowed[shard])
        short = given.short.get(shard, NOTHING)
        assert (lack.rows, lack.nbytes) == (short.rows, short.nbytes)


@given(SIZES, BY_SHARD)
def test_what_was_just_divided_is_even(most: Size, used: dict[int, Size]) -> None:
    given = divide(most, used, {})
    assert not is_uneven(most, used, {}, allowed_by(given, used))


def test_a_shard_that_has_nearly_used_its_share_up_is_uneven() -> None:
    used = {0: Size(80, 0), 1: Size(10, 0)}
    allowed = {0: Size(90, 0), 1: Size(110, 0)}
    assert is_uneven(no_end(200), used, {}, allowed)
    assert not is_uneven(no_end(200), used, {}, {0: Size(110, 0), 1: Size(90, 0)})


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[]", b"\xff", b'{"settle":{"a":[1,-1]},"used":[]}',
        b'{"settle":{"a/":[1,1]},"used":[]}', b'{"settle":{"a":[true,1]},"used":[]}',
        b'{"settle":{"a":[1]},"used":[]}', b'{"give":[[[0,0],[0,0],{"x":[0,0]},{}]]}',
        b'{"give":[[[0,0]]]}', b'{"settle":[],"used":[]}',
    ],
)  # fmt: skip
def test_texts_that_say_nothing_of_quotas_are_refused(text: bytes) -> None:
    with pytest.raises(BadInput):
        said_in(text)
    shard = Shard(0, 1)
    entry = Entry(Position(EPOCH, 1), Command(Kind.QUOTA, READER, 1, text=text, keys=NO_KEYS))
    assert shard.apply(entry).status is Status.REFUSED


def test_too_many_quotas_are_refused() -> None:
    with pytest.raises(BadInput):
        said_in(Settle({f"n{number}": NOTHING for number in range(33)}).to_json())


def test_what_a_copy_says_of_quotas_is_taken_in() -> None:
    cluster = Cluster(1, ASP())
    cluster.divide({"ctr": Size(10, 20), "ctr/emb": no_end(5)})
    held = cluster.copies[0].shard.quotas
    copied = Quotas()
    for item in json.loads(json.dumps(list(held.items()))):
        copied.restore(item)
    assert list(copied.items()) == list(held.items())
    for item in (["quotas", 0, True], ["quotas", 1, 1], ["quota", "a/", [0, 0]] + [[0, 0]] * 3):
        with pytest.raises(BadInput):
            Quotas().restore(item)
