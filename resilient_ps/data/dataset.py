"""What every data set offers, and `open_dataset`, which opens a file of any known format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from resilient_ps.data.batch import Batch, Cursor
from resilient_ps.data.csv import open_criteo, open_csv
from resilient_ps.data.libsvm import open_libsvm
from resilient_ps.data.npz import open_npz
from resilient_ps.data.parquet import open_parquet
from resilient_ps.data.shards import Shard
from resilient_ps.data.textfile import check_file, magic_of
from resilient_ps.errors import BadInput


class Dataset(Protocol):
    """Rows that several ranks read, each its own part, again and again in the same order."""

    @property
    def skipped(self) -> int:
        """Bad rows that were left out so far (only with `on_bad="skip"`)."""

    def shards(self, rank: int, of: int) -> Shard:
        """The part of the data that belongs to `rank`: a pure function of its arguments."""

    def batches(
        self,
        rank: int,
        of: int,
        batch_size: int,
        epochs: int = 1,
        cursor: Cursor | None = None,
    ) -> Iterator[Batch]:
        """The batches of `rank` among `of` ranks, `epochs` times over, `batch_size` rows each.

        The last batch of an epoch may be shorter. With the cursor of a batch, exactly the batches
        after it follow. Raises `BadInput` for a cursor of other data or another rank.
        """

    def beginning(self, rank: int, of: int, epoch: int) -> Cursor:
        """The cursor behind which exactly the batches from this epoch on (from 0) follow."""

    def batches_per_rank(self, of: int, batch_size: int, epochs: int = 1) -> list[int] | None:
        """How many batches each rank gets, or None where that is not known beforehand."""


def _open_tsv(path: Path, **options: Any) -> Dataset:
    return open_csv(path, **{"delimiter": "\t", **options})


_OPENERS: dict[str, Callable[..., Dataset]] = {
    "libsvm": open_libsvm,
    "csv": open_csv,
    "tsv": _open_tsv,
    "criteo": open_criteo,
    "npz": open_npz,
    "parquet": open_parquet,
}
FORMATS = ("auto", *_OPENERS)
_SUFFIXES = {
    ".svm": "libsvm",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".csv": "csv",
    ".tsv": "tsv",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSED = (".gz", ".gzip", ".zip")


def open_dataset(path: str | Path, format: str = "auto", **options: Any) -> Dataset:
    """Open a data file: `format` is one of `FORMATS`, "auto" goes by the file's name.

    `options` are those of the format's reader: `open_libsvm`, `open_csv`, `open_criteo`,
    `open_npz`, `open_parquet`. Text may be compressed with gzip or zip, whatever its name. Raises
    `NotFound` for a missing file, and `BadInput` for a directory, an empty or unreadable file, an
    unknown format or an unknown option.
    """
    if format not in FORMATS:
        raise BadInput(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    found = check_file(path)
    name = _format_of(found) if format == "auto" else format
    try:
        return _OPENERS[name](found, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise BadInput(f"{found}: the reader of {name} has no such option ({error})") from error


def _format_of(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    if suffixes and suffixes[-1] in _SUFFIXES:
        return _SUFFIXES[suffixes[-1]]
    if magic_of(path) == b"PAR1":
        return "parquet"
    raise BadInput(
        f"the format of {path} cannot be told from its name: say format=, one of "
        f"{', '.join(FORMATS[1:])}"
    )
