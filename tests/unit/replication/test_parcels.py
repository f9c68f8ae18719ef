"""Parts for another server, packed into messages that fit on the wire, in their order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.frames import FrameLimits
from resilient_ps.ids import Epoch, Position
from resilient_ps.messages import NO_VALUES, Append, AppendPart, Command, Copied, Copy, Entry, Kind
from resilient_ps.replication import parcels
from resilient_ps.replication.parcels import pack
from resilient_ps.wire import FrameReader, encode

EPOCH = Epoch(1, 3)


def command(values: np.ndarray | None = None, text: bytes = b"") -> Command:
    values = NO_VALUES if values is None else values
    return Command(
        Kind.PUSH, keys=np.arange(len(values), dtype=np.uint64), values=values, text=text
    )


def part(shard: int, after: int, *commands: Command) -> AppendPart:
    entries = tuple(
        Entry(Position(EPOCH, after + place), each) for place, each in enumerate(commands, 1)
    )
    return AppendPart(shard, EPOCH, 4, Position(Epoch(1, 2), after), after, entries)


def floats(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def carried(message: Append | Copy) -> Append | Copy:
    """What arrives on the other side."""
    reader = FrameReader()
    data = b"".join(bytes(piece) for piece in encode(message))
    buffer, messages = reader.get_buffer(), []
    while data:
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        data = data[count:]
        messages += reader.received(count)
        buffer = reader.get_buffer()
    (arrived,) = messages
    assert isinstance(arrived, Append | Copy)
    return arrived


def stream(messages: Iterator[Append | Copy], shard: int) -> list[int]:
    """The lsns that a shard gets, each behind the one that its part names as predecessor."""
    lsns: list[int] = []
    for message in messages:
        assert isinstance(message, Append)
        carried(message)
        for each in message.parts:
            if each.shard == shard:
                before = each.prev.lsn
                assert not lsns or before == lsns[-1]
                for entry in each.entries:
                    assert entry.at.lsn == before + 1
                    before += 1
                    lsns.append(before)
    return lsns


def test_parts_of_several_shards_travel_in_one_message() -> None:
    parts = [part(shard, 10, command(floats(3))) for shard in range(4)]
    (message,) = pack(parts)
    assert isinstance(message, Append)
    assert message.parts == tuple(parts)


def test_a_question_without_entries_travels_too() -> None:
    (message,) = pack([part(0, 7), part(1, 3, command())])
    assert isinstance(message, Append)
    assert [len(each.entries) for each in message.parts] == [0, 1]
    arrived = carried(message)
    assert isinstance(arrived, Append)
    assert arrived.parts[0] == part(0, 7)
    assert arrived.parts[1].entries[0].at == Position(EPOCH, 4)


def test_nothing_makes_no_message() -> None:
    assert list(pack([])) == []


def test_two_parts_of_one_shard_travel_in_two_messages_in_order() -> None:
    first, second = part(0, 1, command(floats(1))), part(0, 2, command(floats(1)))
    messages = list(pack([first, second]))
    assert len(messages) == 2
    assert stream(iter(messages), 0) == [2, 3]


def test_entries_of_another_dtype_begin_another_message() -> None:
    parts = [part(0, 1, command(floats(2)), command(np.ones(2, np.int64)), command(floats(1)))]
    messages = list(pack(parts))
    assert len(messages) == 3
    assert stream(iter(messages), 0) == [2, 3, 4]


def test_entries_without_values_go_with_any_dtype() -> None:
    parts = [part(0, 1, command(floats(2)), command(), command(floats(2)))]
    assert len(list(pack(parts))) == 1


def test_what_is_too_much_for_one_message_is_split_and_each_part_names_its_predecessor() -> None:
    count = 2 * FrameLimits().meta_bytes // 60
    messages = list(pack([part(0, 5, *[command(text=b"x" * 20) for _ in range(count)])]))
    assert len(messages) > 1
    assert stream(iter(messages), 0) == list(range(6, 6 + count))
    again = messages[1]
    assert isinstance(again, Append)
    assert again.parts[0].prev == Position(EPOCH, again.parts[0].entries[0].at.lsn - 1)
    assert again.parts[0].commit == 5


def test_a_single_entry_of_any_size_fits() -> None:
    (message,) = pack([part(0, 1, command(np.ones(5 << 20, np.float32)))])
    assert carried(message) is not None


def test_a_copy_stands_where_it_stood_between_the_entries() -> None:
    piece = Copy(0, EPOCH, 4, 2, 0, Copied.END)
    messages = list(pack([part(0, 1, command(floats(1))), piece, part(0, 2, command(floats(1)))]))
    assert [type(message) for message in messages] == [Append, Copy, Append]
    assert messages[1] is piece


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(st.tuples(st.sampled_from("fi-"), st.integers(1, 40)), max_size=6),
        ),
        max_size=8,
    )
)
def test_no_entry_is_lost_or_moved_whatever_fits(
    asked: list[tuple[int, list[tuple[str, int]]]],
) -> None:
    lasts = {0: 10, 1: 20, 2: 30}
    parts = []
    for shard, sizes in asked:
        made = [_command(kind, count) for kind, count in sizes]
        parts.append(part(shard, lasts[shard], *made))
        lasts[shard] += len(made)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parcels, "LIMITS", FrameLimits(meta_bytes=600, payload_bytes=400))
        messages = list(pack(parts))
    for shard in lasts:
        first = 10 * (shard + 1)
        assert stream(iter(messages), shard) == list(range(first + 1, lasts[shard] + 1))
    arrived = [
        each for message in messages if isinstance(message, Append) for each in message.parts
    ]
    assert len(arrived) >= len(parts)


def _command(kind: str, count: int) -> Command:
    if kind == "-":
        return command()
    return command(np.ones(count, np.float32 if kind == "f" else np.int64))
