"""What a shard holds apart from rows and held pushes, as small JSON-able items; and its digest.

Both a copy of the state and the digest are made of these items, so that a copy cannot leave out
what a digest looks at. Items are lists, their first element says what they are:

    ["table", number, specification, learning rate, writer, rows]
    ["job", number, specification, number of the last intent, last clock applied]
    ["rank", job, rank, *fields of the `RankRecord`]   (the cursor in base64)
    ["cut", number, cut or "", jobs that it waits for]   (once there has been any)
    ["quotas", number of the last round, is it over]     (once there has been any)
    ["quota", namespace, most, allowed, used, short]     (pairs of rows and bytes)

Jobs follow tables, and ranks their job; each in the order of numbers.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import xxhash

from resilient_ps.cuts import Cuts
from resilient_ps.errors import BadInput
from resilient_ps.job import Job
from resilient_ps.ledger import RankRecord
from resilient_ps.quotas import Quotas
from resilient_ps.table_part import TablePart

Item: TypeAlias = list[Any]
WHOLE_MAX = (1 << 64) - 1
_FIELDS = [field.name for field in dataclasses.fields(RankRecord)]
_DEFAULTS = [getattr(RankRecord(), name) for name in _FIELDS]


def items_of(
    tables: Mapping[int, TablePart], jobs: Mapping[int, Job], cuts: Cuts, quotas: Quotas
) -> Iterator[Item]:
    """All items of a shard."""
    for number, table in sorted(tables.items()):
        yield ["table", number, table.text, table.lr, table.writer, table.rows]
    for number, job in sorted(jobs.items()):
        yield ["job", number, job.text, job.ledger.intent, job.barrier.applied]
        for rank, record in sorted(job.ledger.ranks.items()):
            yield ["rank", number, rank, *_fields_of(record)]
    if cuts.number:
        text = "" if cuts.cut is None else cuts.cut.to_json()
        yield ["cut", cuts.number, text, sorted(cuts.awaited)]
    yield from quotas.items()


def _fields_of(record: RankRecord) -> Iterator[Any]:
    for name in _FIELDS:
        value = getattr(record, name)
        yield base64.b64encode(value).decode() if isinstance(value, bytes) else value


def record_of(fields: Item) -> RankRecord:
    """The record that these fields were made of. Raises `BadInput`."""
    if len(fields) != len(_DEFAULTS):
        raise BadInput(f"a rank's record has {len(_DEFAULTS)} fields, not {len(fields)}")
    values: list[Any] = []
    for value, default in zip(fields, _DEFAULTS, strict=True):
        if isinstance(default, bytes):
            values.append(_bytes_of(value))
        elif isinstance(default, bool):
            if not isinstance(value, bool):
                raise BadInput("a rank's record says neither true nor false")
            values.append(value)
        else:
            values.append(whole(value))
    return RankRecord(*values)


def _bytes_of(value: object) -> bytes:
    if not isinstance(value, str):
        raise BadInput("a cursor is no text")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"a cursor is not in base64 ({error})") from error


def whole(value: object, most: int = WHOLE_MAX) -> int:
    """`value`, if it is a whole number from 0 to `most`. Raises `BadInput`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise BadInput(f"{str(value)[:40]!r} is no whole number from 0 to {most}")
    return value


def digest_of(
    lsn: int, tables: Mapping[int, TablePart], jobs: Mapping[int, Job], cuts: Cuts, quotas: Quotas
) -> str:
    """XXH3-128 of all that a shard's log determines: equal logs give equal digests."""
    hashed = xxhash.xxh3_128(b"%d" % lsn)
    hashed.update(json.dumps(list(items_of(tables, jobs, cuts, quotas))).encode())
    for number, table in sorted(tables.items()):
        hashed.update(f"\ncontent {number} {table.digest()}".encode())
    for number, job in sorted(jobs.items()):
        for clock, rank, held in job.barrier.held():
            keys, values = held.keys, held.values
            what: Item = [number, clock, rank, held.n, held.table, held.rate, len(keys)]
            what += [len(values), str(values.dtype)]
            hashed.update(b"\nheld " + json.dumps(what).encode())
            hashed.update(keys.tobytes())
            hashed.update(values.tobytes())
    return hashed.hexdigest()
