"""Compiles the rewritten package into a folder: mypyc makes C of it, and the C compiler the rest.

mypyc runs in a process of its own (`generating`), which takes a gigabyte and half a minute. Then
each file of C is compiled by itself, as many at a time as there are cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

from resilient_ps.cli.compiled.dataclass_methods import Unknown
from resilient_ps.cli.compiled.named_tuples import MAKER
from resilient_ps.cli.compiled.rewriting import PACKAGE, file_of, rewritten, sources_of
from resilient_ps.errors import BadInput, Bug

Tell: TypeAlias = Callable[[str, int, int], None]
"""`tell(what is being done, how much of it is done, of how much)`."""

# Every function calls others of the group directly, so nothing else need see them.
C_OPTIONS = ["-O2", "-w", "-g0", "-fvisibility=hidden", "-fno-semantic-interposition"]
MAKER_TYPES = "from typing import Any\n\ndef make(kind: Any, *values: Any) -> Any: ...\n"
MAKER_MODULE = {"name": MAKER, "sources": [str(Path(__file__).with_name("make_tuple.c"))]}
OUTPUT_LINES_MOST = 5  # of what a program said that failed


def build(package: Path, root: Path, tell: Tell) -> None:
    """Copy the package to `root`, with its pure modules compiled."""
    tell("copying", 0, 1)
    files = prepare(package, root)
    tell("making C of Python", 0, 1)
    modules = [*_generated(root, files), MAKER_MODULE]
    compile_modules(root, modules, tell)
    for name in ("generated", ".mypy_cache", "build"):
        shutil.rmtree(root / name, ignore_errors=True)


def prepare(package: Path, root: Path) -> list[str]:
    """Copy the package to `root`, with sources that are to be compiled: these, below `root`."""
    skip = shutil.ignore_patterns("__pycache__", "*.cpp", "*.h")
    shutil.copytree(package, root / PACKAGE, ignore=skip)
    try:
        texts = rewritten(sources_of(root))
    except Unknown as error:
        raise Bug(f"cannot be compiled: {error}") from error
    files = []
    for name, text in texts.items():
        file = file_of(root, name)
        assert file is not None
        file.write_text(text)
        files.append(str(file.relative_to(root)))
    root.joinpath(*MAKER.split(".")).with_suffix(".pyi").write_text(MAKER_TYPES)
    return files


def _generated(root: Path, files: list[str]) -> list[dict[str, Any]]:
    """Modules to compile: their names, C sources and folders of headers."""
    command = [sys.executable, "-P", "-m", "resilient_ps.cli.compiled.generating", *files]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Bug(f"mypyc does not take the sources: {_said(done.stdout + done.stderr)}")
    modules: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return modules


def _said(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    return " / ".join(lines[:OUTPUT_LINES_MOST]) or output[-1_000:]


def compile_modules(root: Path, modules: Sequence[Mapping[str, Any]], tell: Tell) -> None:
    """Compile modules into the package below `root`. Raises BadInput where the compiler fails."""
    from setuptools._distutils.errors import CCompilerError

    counted = _Counted(tell, sum(len(module["sources"]) for module in modules))
    with ThreadPoolExecutor(os.cpu_count()) as workers:
        try:
            begun = [
                [
                    workers.submit(_compile, root, source, module.get("folders", ()), counted)
                    for source in module["sources"]
                ]
                for module in modules
            ]
            for module, objects in zip(modules, begun, strict=True):
                _link(root, module["name"], [each.result() for each in objects])
        except CCompilerError as error:
            raise BadInput(f"the C compiler fails: {error}") from error
        finally:
            workers.shutdown(cancel_futures=True)


class _Counted:
    """Tells how many files are compiled."""

    def __init__(self, tell: Tell, total: int) -> None:
        self._tell = tell
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def one_more(self) -> None:
        """Another one is."""
        with self._lock:
            self._done += 1
            self._tell("compiling C", self._done, self._total)


def _compiler() -> Any:
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler

    compiler = new_compiler()
    customize_compiler(compiler)
    return compiler


def _compile(root: Path, source: str, folders: Sequence[str], counted: _Counted) -> str:
    """The object file of a file of C, in a folder of its own: names may repeat."""
    path = Path(source)
    objects = _compiler().compile(
        [source],
        output_dir=str(root / "generated" / "objects" / f"{path.parent.name}-{path.stem}"),
        include_dirs=[sysconfig.get_paths()["include"], *folders],
        extra_postargs=C_OPTIONS,
    )
    counted.one_more()
    return str(objects[0])


def _link(root: Path, name: str, objects: list[str]) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    _compiler().link_shared_object(objects, str(root.joinpath(*name.split("."))) + suffix)
