"""Runs the command again, with compiled machines: compiles them first where nobody has yet.

What is compiled lies in the user's cache folder, one folder for each state of the sources, of
Python and of mypy. A folder appears there when it is complete, and never changes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import xxhash

from resilient_ps.chaos.sim import run as runs
from resilient_ps.cli.compiled.building import Tell, build
from resilient_ps.errors import BadInput, Bug

BEGUN = ".begun-"  # how the name of a folder begins that is not complete
BEGUN_AT_MOST_S = 86_400.0
KEPT = 2  # folders: that of this version, and the one that was used before
PACKAGE = Path(__file__).parents[2]


def is_compiled() -> bool:
    """Does this process run compiled machines?"""
    return not str(runs.__file__).endswith(".py")


def machines() -> str:
    """For people: what kind of machines this process runs."""
    return "compiled" if is_compiled() else "interpreted"


def run_from(folder: Path) -> NoReturn:
    """Become a process that runs the same command with the package in `folder`."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if paths[:1] == [str(folder)]:
        raise Bug(f"{folder} is first in PYTHONPATH, but the package is taken from {PACKAGE}")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *paths])
    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "resilient_ps.cli.main", *sys.argv[1:]]
    os.execve(sys.executable, command, os.environ)


def compiled_folder(tell: Tell) -> Path:
    """Where the compiled package is; compiles it if need be. Raises BadInput."""
    _check_tools()
    cache = _cache_folder()
    folder = cache / _key()
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=BEGUN, dir=cache) as begun:
            build(PACKAGE, Path(begun) / "package", tell)
            if not folder.is_dir():
                (Path(begun) / "package").rename(folder)
    os.utime(folder)
    remove_old(cache)
    return folder


def _check_tools() -> None:
    missing = [name for name in ("mypyc", "setuptools") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadInput(
            f"--compiled needs {' and '.join(missing)}: pip install 'resilient-ps[compiled]'"
        )
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise BadInput(f"--compiled needs a C compiler, and there is no {compiler}: install gcc")


def _cache_folder() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "resilient-ps" / "compiled"


def _key() -> str:
    tools = f"{sys.version} {sysconfig.get_platform()} {version('mypy')}\n"
    digest = xxhash.xxh3_128(tools.encode())
    for folder, folders, names in os.walk(PACKAGE, followlinks=True):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".py", ".c", ".so")):
                path = Path(folder, name)
                digest.update(f"{path.relative_to(PACKAGE)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def remove_old(cache: Path) -> None:
    """Of the folders in the cache, keep those that were used last; and none that was begun."""
    complete = [path for path in cache.iterdir() if not path.name.startswith(BEGUN)]
    latest = sorted(complete, key=lambda path: path.stat().st_mtime, reverse=True)
    for path in latest[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
    for path in cache.glob(f"{BEGUN}*"):  # left behind by a process that was killed
        if path.stat().st_mtime < time.time() - BEGUN_AT_MOST_S:
            shutil.rmtree(path, ignore_errors=True)
