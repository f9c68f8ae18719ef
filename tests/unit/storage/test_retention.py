"""Retention and sweeping: what is kept stays readable, and nothing that somebody may need goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.errors import BadInput
from resilient_ps.storage.manifest import Manifest, ObjectInfo
from resilient_ps.storage.names import (
    CheckpointId,
    chunks_name,
    index_name,
    manifest_name,
    marker_name,
)
from resilient_ps.storage.retention import (
    DAY_S,
    HOUR_S,
    KeepPolicy,
    Recorded,
    is_closed,
    plan_sweep,
    to_delete,
)

POLICIES = st.builds(KeepPolicy, st.integers(1, 5), st.integers(0, 5), st.integers(0, 5))


@st.composite
def any_records(draw: st.DrawFn) -> list[Recorded]:
    at_s, found = 1_790_000_000, []
    for number in range(1, draw(st.integers(0, 30)) + 1):
        at_s += draw(st.sampled_from([60, HOUR_S // 2, HOUR_S, DAY_S // 2]))
        id = CheckpointId.of(1 + number // 10, number, number)
        found.append(Recorded(id, at_s, draw(st.booleans())))
    return draw(st.permutations(found))


def numbered(*numbers: int, bad: tuple[int, ...] = (), apart_s: int = 60) -> list[Recorded]:
    return [Recorded(CheckpointId.of(1, n, n), n * apart_s, n not in bad) for n in numbers]


def numbers_of(ids: tuple[CheckpointId, ...]) -> list[int]:
    return [id.number for id in ids]


@given(any_records(), POLICIES, st.data())
def test_the_newest_good_ones_and_those_in_use_always_stay(
    records: list[Recorded], policy: KeepPolicy, data: st.DataObject
) -> None:
    ids = [record.id for record in records]
    in_use = data.draw(st.lists(st.sampled_from(ids))) if ids else []
    deleted = to_delete(records, policy, in_use)
    good = sorted(record.id for record in records if record.good)
    assert not set(deleted) & set(good[-policy.last :])
    assert not set(deleted) & set(in_use)
    assert set(deleted) <= set(ids)
    assert list(deleted) == sorted(deleted)


@given(any_records(), POLICIES)
def test_of_each_kept_hour_and_day_the_last_one_stays(
    records: list[Recorded], policy: KeepPolicy
) -> None:
    deleted = set(to_delete(records, policy))
    good = sorted(record for record in records if record.good)
    for period_s, periods in ((HOUR_S, policy.hourly), (DAY_S, policy.daily)):
        last_of = {record.created_s // period_s: record.id for record in good}
        newest = sorted(last_of)[-periods:] if periods else []
        assert not deleted & {last_of[period] for period in newest}


@given(any_records(), POLICIES)
def test_no_more_is_kept_than_the_policy_says(records: list[Recorded], policy: KeepPolicy) -> None:
    left = {record.id for record in records} - set(to_delete(records, policy))
    good = {record.id for record in records if record.good}
    assert len(left & good) <= policy.last + policy.hourly + policy.daily


@given(any_records(), POLICIES)
def test_deleting_twice_deletes_nothing_more(records: list[Recorded], policy: KeepPolicy) -> None:
    deleted = to_delete(records, policy)
    left = [record for record in records if record.id not in deleted]
    assert to_delete(left, policy) == ()


def test_damaged_ones_are_not_counted_and_go_later() -> None:
    keep_two = KeepPolicy(last=2)
    assert numbers_of(to_delete(numbered(1, 2, 3, 4, bad=(3, 4)), keep_two)) == []
    assert numbers_of(to_delete(numbered(1, 2, 3, 4, bad=(3,)), keep_two)) == [1]
    assert numbers_of(to_delete(numbered(1, 2, 3, 4, 5, bad=(3,)), keep_two)) == [1, 2, 3]
    assert numbers_of(to_delete(numbered(1, 2, bad=(1, 2)), KeepPolicy(last=1))) == []


def test_a_later_incarnation_is_newer_whatever_its_numbers() -> None:
    records = [
        Recorded(CheckpointId.of(1, 900, 1), 10, True),
        Recorded(CheckpointId.of(2, 3, 1), 20, True),
    ]
    assert to_delete(records, KeepPolicy(last=1)) == (CheckpointId.of(1, 900, 1),)


def test_hours_and_days_keep_their_last_one() -> None:
    every_half_hour = numbered(*range(1, 101), apart_s=HOUR_S // 2)
    deleted = set(numbers_of(to_delete(every_half_hour, KeepPolicy(1, hourly=3, daily=2))))
    assert set(range(1, 101)) - deleted == {95, 97, 99, 100}


@pytest.mark.parametrize("given_", [{"last": 0}, {"hourly": -1}, {"daily": 10_001}])
def test_a_policy_that_cannot_be_is_refused(given_: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="keep"):
        KeepPolicy(**given_)


# -- sweeping


def checkpoint_of(
    number: int, shared: tuple[ObjectInfo, ...] = (), incarnation: int = 1
) -> Manifest:
    id = CheckpointId.of(incarnation, number, number)
    own = tuple(ObjectInfo(chunks_name("c", id, 0, 9, n), 1, "0" * 64) for n in (1, 2))
    index = ObjectInfo(index_name("c", id, 0, 9), 1, "0" * 64)
    return Manifest(id, "c", number, "", 1, {}, "", (), (), (), (index,), (*own, *shared))


def names_of(manifest: Manifest) -> set[str]:
    own = {each.name for each in (*manifest.indexes, *manifest.objects)}
    return {*own, manifest_name("c", manifest.id)}


def always(_: CheckpointId) -> bool:
    return True


def swept(*args: object) -> set[str]:
    sweep = plan_sweep("c", *args)  # type: ignore[arg-type]
    assert not sweep.unread
    return {name for batch in sweep.batches for name in batch}


@given(st.lists(st.sets(st.integers(0, 7)), min_size=1, max_size=8), st.data())
def test_what_a_retained_manifest_names_is_never_swept(
    reused: list[set[int]], data: st.DataObject
) -> None:
    manifests: list[Manifest] = []
    for number, earlier in enumerate(reused, 1):
        shared = {each for i in earlier if i < len(manifests) for each in manifests[i].objects}
        manifests.append(checkpoint_of(number, tuple(sorted(shared, key=lambda o: o.name))))
    retained = [m for m in manifests if data.draw(st.booleans())]
    dropped = [m.id for m in manifests if m not in retained]
    closed = {m.id for m in manifests if data.draw(st.booleans())}
    listed = set().union(*map(names_of, manifests)) | {marker_name("c", 1), "c/notes.txt"}
    gone = swept(sorted(listed), retained, dropped, closed.__contains__)
    kept = set().union(set(), *map(names_of, retained))
    assert not gone & kept
    assert marker_name("c", 1) not in gone
    assert "c/notes.txt" not in gone
    for manifest in manifests:
        own = {name for name in names_of(manifest) if str(manifest.id) in name}
        assert own - kept <= gone if manifest.id in closed else not own & gone


def test_leftovers_of_a_cut_that_was_given_up_are_swept_and_those_of_an_open_one_are_not() -> None:
    given_up, still_open = checkpoint_of(1), checkpoint_of(2)
    listed = names_of(given_up) | names_of(still_open)
    listed -= {manifest_name("c", given_up.id), manifest_name("c", still_open.id)}
    gone = swept(listed, [], [], lambda id: id.number == 1)
    assert gone == names_of(given_up) - {manifest_name("c", given_up.id)}


def test_a_manifest_that_nobody_knows_stops_the_sweep_until_it_is_read() -> None:
    known, unknown = checkpoint_of(1), checkpoint_of(2)
    listed = names_of(known) | names_of(unknown)
    sweep = plan_sweep("c", listed, [known], [], always)
    assert sweep.batches == ()
    assert sweep.unread == (unknown.id,)
    assert swept(listed, [known, unknown], [], always) == set()


def test_manifests_go_before_what_they_name_in_batches_of_their_own() -> None:
    manifests = [checkpoint_of(number) for number in range(1, 400)]
    listed = set().union(*map(names_of, manifests))
    batches = plan_sweep("c", listed, [], [m.id for m in manifests], always).batches
    assert [len(batch) for batch in batches] == [399, 1000, 197]
    assert all(name.endswith("/manifest.json") for name in batches[0])


def test_a_cut_is_closed_when_its_intent_is_or_when_its_incarnation_is_over() -> None:
    def closed(incarnation: int, number: int) -> bool:
        return is_closed(CheckpointId.of(incarnation, number, 1), 3, 10, {7})

    assert closed(2, 500)
    assert closed(3, 6)
    assert not closed(3, 7)
    assert not closed(3, 11)  # an older etcd does not know it
    assert not closed(4, 1)
