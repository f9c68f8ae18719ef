"""Reader of `.npz` archives: dense X, sparse CSR parts as scipy writes them, or our own keys.

The arrays are held in memory. Pickled objects are never loaded.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.data.arrays import ArrayDataset, SparseArrayDataset
from resilient_ps.data.textfile import check_file
from resilient_ps.errors import BadInput

MAX_NPZ_BYTES = 16 << 30
_LABEL_NAMES = ("y", "labels", "label")


def open_npz(
    path: str | Path, *, shuffle_seed: int | None = None
) -> ArrayDataset | SparseArrayDataset:
    """Load one of three layouts, each with labels in `y`, `labels` or `label`.

    Dense: `X` (n, d). CSR: `data`, `indices`, `indptr`. Hashed: `keys`, `row_offsets` and, unless
    all are 1, `values`. Raises `BadInput` when the archive has none of them, is damaged, holds
    objects, or unpacks to more than `MAX_NPZ_BYTES`.
    """
    found = check_file(path)
    arrays = _load(found)
    labels = next((arrays[name] for name in _LABEL_NAMES if name in arrays), None)
    if labels is None:
        raise BadInput(f"{found} has no labels: save them as 'y'; it has {_listed(arrays)}")
    try:
        return _dataset(arrays, labels, shuffle_seed)
    except BadInput as error:
        raise BadInput(f"{found}: {error}") from error


def _dataset(
    arrays: dict[str, NDArray[Any]], labels: NDArray[Any], seed: int | None
) -> ArrayDataset | SparseArrayDataset:
    if "X" in arrays:
        return ArrayDataset(arrays["X"], labels, shuffle_seed=seed)
    if {"keys", "row_offsets"} <= arrays.keys():
        return SparseArrayDataset(
            labels, arrays["row_offsets"], arrays["keys"], arrays.get("values"), shuffle_seed=seed
        )
    if {"data", "indices", "indptr"} <= arrays.keys():
        return SparseArrayDataset(
            labels, arrays["indptr"], arrays["indices"], arrays["data"], shuffle_seed=seed
        )
    raise BadInput(
        "neither 'X' (dense), nor 'data', 'indices', 'indptr' (CSR), nor 'keys', 'row_offsets' "
        f"(hashed) is there, only {_listed(arrays)}"
    )


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked_bytes = sum(info.file_size for info in archive.infolist())
        if unpacked_bytes > MAX_NPZ_BYTES:
            raise BadInput(
                f"{path} unpacks to {unpacked_bytes} bytes, more than {MAX_NPZ_BYTES}: use a "
                "format that streams (libsvm, csv, parquet)"
            )
        with np.load(path, allow_pickle=False) as archive_of_arrays:
            return {name: archive_of_arrays[name] for name in archive_of_arrays.files}
    except BadInput:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, KeyError) as error:
        raise BadInput(
            f"{path} cannot be read as .npz ({error}): write it with numpy.savez, without objects"
        ) from error


def _listed(arrays: dict[str, NDArray[Any]]) -> str:
    return ", ".join(sorted(arrays)[:10]) or "nothing"
