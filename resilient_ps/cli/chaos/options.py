"""Reading what the options of `chaos run` say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from resilient_ps.chaos.live.plan import FOLDER, SEAWEEDFS
from resilient_ps.chaos.live.run_plan import SCRIPT
from resilient_ps.chaos.live.workload import MODES
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.storage.runtime.seaweedfs import find_weed

SEEDS_MOST = 10_000
SEED_MOST = 1 << 62
ALL, NONE, AUTO = "all", "none", "auto"
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600}


def duration_of(text: str) -> float:
    """Seconds: `60s`, `5m`, `1.5h` or a bare number of seconds."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smh]?)", text.strip())
    if found is None:
        raise BadInput(f"--duration {text!r}: give a time such as 60s, 5m or 1h")
    return float(found[1]) * _UNITS_S[found[2]]


def seeds_of(seed: int | None, seeds: str) -> list[int]:
    """The seeds of `--seed N` or `--seeds A..B`; neither: 1."""
    if not seeds:
        return [1 if seed is None else seed]
    if seed is not None:
        raise BadInput("--seed and --seeds: give one of them")
    found = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", seeds.strip())
    if found is None or int(found[1]) > int(found[2]):
        raise BadInput(f"--seeds {seeds!r}: give the first and the last one, such as 1..20")
    first, last = int(found[1]), int(found[2])
    if last - first >= SEEDS_MOST:
        raise BadInput(f"--seeds {seeds}: at most {SEEDS_MOST} at once")
    return list(range(first, last + 1))


def names_of(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def workloads_of(text: str, script: str) -> tuple[str, ...]:
    """The workloads that seeds take in turn. Raises `BadInput` for one that there is not."""
    if script:
        if text != ALL:
            raise BadInput("--script and --workload: the script is the workload; give one of them")
        return (SCRIPT,)
    names = names_of(text)
    if names == (ALL,):
        return tuple(MODES)
    unknown = [name for name in names if name not in MODES]
    if unknown or not names:
        what = f"there is no {unknown[0]!r}" if unknown else "it is empty"
        raise BadInput(f"--workload: {what}; use {', '.join(MODES)} or {ALL}")
    return names


def script_of(text: str) -> tuple[str, ...]:
    """A user's script and its arguments, as a shell would read them."""
    if not text:
        return ()
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--script {text!r}: {error}") from error
    if not words:
        raise BadInput("--script: it is empty")
    path = Path(words[0])
    if not path.is_file():
        raise BadInput(f"--script: there is no file {words[0]}")
    return (str(path.absolute()), *words[1:])


def store_of(text: str) -> str:
    """As a plan names it. By default SeaweedFS where it is installed, else none."""
    if text == AUTO:
        return SEAWEEDFS if has_seaweedfs() else ""
    if text == NONE:
        return ""
    if text in (SEAWEEDFS, FOLDER) or text.startswith("s3://"):
        return text
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise BadInput(f"--store {text}: that is a file; give a folder, s3://..., {SEAWEEDFS}")
    return str(path.absolute())


def has_seaweedfs() -> bool:
    """Is it installed?"""
    try:
        find_weed()
    except NotFound:
        return False
    return True
