"""The arrays of a call: keys as some shards want them, values as their answers bring them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from resilient_ps.messages import Answer, Keys, Status

if TYPE_CHECKING:
    from resilient_ps.calls import Call, Piece


def values_by_shard(call: Call, answer: Answer) -> dict[int, memoryview] | None:
    """The values of a pull's answer that were received in an array of their own, as bytes.

    None: they are not as many as were asked for.
    """
    found: dict[int, memoryview] = {}
    data = memoryview(b"".join([values.data.cast("B") for values in answer.values]))
    at = 0
    for part in answer.parts:
        if part.status is Status.OK:
            piece = call.pieces.get(part.shard)
            end = at if piece is None else at + piece.stop - piece.start
            found[part.shard], at = data[at:end], end
    return found if at == len(data) else None


def keys_of_pieces(call: Call, pieces: Sequence[Piece]) -> Keys:
    """The keys of these pieces, which do not stand one behind the other."""
    return np.concatenate([call.keys[p.first : p.first + p.count] for p in pieces])
