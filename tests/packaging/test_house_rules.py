"""Rules of the house that keep the code readable and pure."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_tree import LINKED, PRODUCT, ROOT, copy_sources, product_modules, tool

MAX_LINES = 450
BANNED_MODULES = {"pickle", "marshal", "shelve", *LINKED}


@functools.cache
def parsed() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple(
        (path, ast.parse((ROOT / path).read_text(), filename=str(path)))
        for path in product_modules()
    )


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of every absolute import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool(command[0]), *command[1:]], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_every_module_says_what_it_is_for() -> None:
    assert [str(path) for path, tree in parsed() if not ast.get_docstring(tree)] == []


def test_no_module_is_too_long_to_read() -> None:
    lines = {path: len((ROOT / path).read_text().splitlines()) for path in product_modules()}
    assert {str(path): count for path, count in lines.items() if count > MAX_LINES} == {}


@pytest.mark.parametrize("folder", LINKED)
def test_the_linked_folders_are_links_to_the_top(folder: str) -> None:
    link = ROOT / "resilient_ps" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / folder


def test_nothing_imports_pickle_or_the_bare_name_of_a_linked_folder() -> None:
    assert [
        f"{path}:{line}: {name}"
        for path, tree in parsed()
        for line, name in imported(tree)
        if name.split(".")[0] in BANNED_MODULES
    ] == []


def test_nothing_calls_hash_or_wait_for() -> None:
    """`hash` of a text differs between processes; `wait_for` can swallow a cancellation."""
    assert [
        f"{path}:{node.lineno}: {ast.unparse(node.func)}"
        for path, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name | ast.Attribute)
        and ast.unparse(node.func) in {"hash", "wait_for", "asyncio.wait_for"}
    ] == []


FORKS = {"fork", "forkpty", "preexec_fn", "fork_exec"}


def forks_in(tree: ast.AST) -> list[str]:
    """The calls that fork, or let multiprocessing do it, which it does unless told otherwise."""
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _forks(node)
    ]


def _forks(call: ast.Call) -> bool:
    name, words = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
    if name.endswith("get_context"):
        return [ast.unparse(each) for each in call.args] != ["'spawn'"]
    if name.endswith("ProcessPoolExecutor"):
        return "mp_context" not in words
    if name in ("multiprocessing.Process", "multiprocessing.Pool"):
        return True
    return bool(FORKS & {name.split(".")[-1], *words})


def test_processes_are_spawned_and_never_forked() -> None:
    """A fork of a process with threads, such as those of gRPC, may hang for ever."""
    assert {str(path): found for path, tree in parsed() if (found := forks_in(tree))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "os.fork()",
        "subprocess.Popen(command, preexec_fn=prepare)",
        "multiprocessing.Pool(2)",
        "multiprocessing.get_context('fork')",
        "ProcessPoolExecutor(2)",
    ],
)
def test_what_forks_is_found(source: str) -> None:
    assert forks_in(ast.parse(source))


@pytest.mark.lint
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("lint-imports",), ("mypy",)],
    ids=" ".join,
)
def test_the_linters_are_content(command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


# --- negative controls: the linters see through the links ---------------------------------------

VIOLATIONS = {
    "coordinator/reads_a_clock.py": "import time\n\nprint(time.monotonic())\n",
    "coordinator/draws.py": "import random\n\nprint(random.random())\n",
    "coordinator/draws_globally.py": "import numpy as np\n\nprint(np.random.rand(3))\n",
    "coordinator/knows_storage.py": "from resilient_ps import storage\n\nprint(storage)\n",
    "coordinator/knows_chaos.py": "from resilient_ps import chaos\n\nprint(chaos)\n",
    "storage/opens_sockets.py": "import socket\n\nprint(socket)\n",
    "storage/knows_a_runtime.py": "import resilient_ps.coordinator.runtime as r\n\nprint(r)\n",
    "resilient_ps/unpickles.py": "import pickle\n\nprint(pickle)\n",
}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = copy_sources(tmp_path_factory.mktemp("spoilt"))
    for name, text in VIOLATIONS.items():
        (sources / name).write_text(text)
    return sources


@pytest.mark.parametrize(
    "says",
    [
        "resilient_ps.coordinator.reads_a_clock -> time",
        "resilient_ps.coordinator.draws -> random",
        "resilient_ps.coordinator.knows_storage -> resilient_ps.storage",
        "resilient_ps.coordinator.knows_chaos -> resilient_ps.chaos",
        "resilient_ps.storage.opens_sockets -> socket",
        "resilient_ps.storage.knows_a_runtime -> resilient_ps.coordinator.runtime",
        "resilient_ps.unpickles -> pickle",
    ],
)
def test_import_linter_finds(says: str, broken_imports: str) -> None:
    assert says in broken_imports


@pytest.fixture(scope="module")
def broken_imports(spoilt: Path) -> str:
    done = run("lint-imports", "--no-cache", cwd=spoilt)
    assert done.returncode != 0
    return done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("coordinator/reads_a_clock.py", "pure code reads no clock"),
        ("coordinator/draws.py", "draws no random numbers"),
        ("coordinator/draws_globally.py", "NPY002"),
        ("resilient_ps/unpickles.py", "remote code execution"),
    ],
)
def test_ruff_finds(name: str, says: str, spoilt: Path) -> None:
    done = run("ruff", "check", "--no-cache", name, cwd=spoilt)
    assert says in done.stdout


def test_ruff_visits_every_product_folder(spoilt: Path) -> None:
    listed = run("ruff", "check", "--show-files", *PRODUCT, cwd=spoilt).stdout
    for name in VIOLATIONS:
        assert name in listed
