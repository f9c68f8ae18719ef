"""Reader of the libsvm (svmlight) format: `label index:value index:value ... # comment`.

The format is described in the README of LIBSVM (Chang and Lin, 2011) and by SVMlight (Joachims).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from resilient_ps.data.lines import BadLine, LineDataset, OnBad, Row
from resilient_ps.data.numbers import MAX_FLOAT32, number, shown
from resilient_ps.data.textfile import open_text
from resilient_ps.errors import BadInput

FirstIndex = Literal["auto", 0, 1]
MAX_INDEX = (1 << 63) - 1


def open_libsvm(
    path: str | Path,
    *,
    first_index: FirstIndex = "auto",
    missing_label: Literal["error", "nan"] = "error",
    on_bad: OnBad = "error",
) -> LineDataset:
    """Stream a libsvm file, plain, gzip or zip.

    `first_index`: with `1`, an index i becomes key i - 1 and an index 0 is a bad line; with `0` or
    `"auto"` the index is the key. "auto" does not guess from the file, for a training and a
    test file could be guessed differently, and all weights would be off by one.
    `missing_label="nan"` accepts rows that begin with a feature; their label is NaN. Indices that
    repeat in a row are summed; `qid:` is ignored; blank lines and comments are no rows.
    """
    if first_index not in ("auto", 0, 1):
        raise BadInput(f"first_index={first_index!r}: use 'auto', 0 or 1")
    if missing_label not in ("error", "nan"):
        raise BadInput(f"missing_label={missing_label!r}: use 'error' or 'nan'")
    parser = _LibsvmRows(1 if first_index == 1 else 0, missing_label)
    return LineDataset(open_text(path), parser, on_bad=on_bad)


class _LibsvmRows:
    def __init__(self, first_index: int, missing_label: str) -> None:
        self._first_index = first_index
        self._missing_label = missing_label

    def parse(self, text: bytes) -> Row | None:
        fields = text.partition(b"#")[0].split()
        if not fields:
            return None
        if b":" not in fields[0]:
            label = number("label", fields.pop(0))
        elif self._missing_label == "nan":
            label = float("nan")
        else:
            raise BadLine(f"no label before {shown(fields[0])} (missing_label='nan' accepts this)")
        features: dict[int, float] = {}
        for field in fields:
            self._add(features, field)
        return label, tuple(features), tuple(features.values())

    def _add(self, features: dict[int, float], field: bytes) -> None:
        index, colon, value = field.partition(b":")
        if not colon:
            raise BadLine(f"{shown(field)} is not index:value")
        if index == b"qid":
            return
        if not index.isdigit():
            raise BadLine(f"index {shown(index)} is not a whole number from 0 on")
        key = int(index) - self._first_index if len(index) < 20 else MAX_INDEX + 1
        if key < 0:
            raise BadLine("index 0 in a file read with first_index=1 (use first_index=0)")
        if key > MAX_INDEX:
            raise BadLine(f"index {shown(index)} is above {MAX_INDEX}")
        total = features.get(key, 0.0) + number("value", value)
        if abs(total) > MAX_FLOAT32:
            raise BadLine(f"the values of index {shown(index)} do not fit float32 in sum")
        features[key] = total
