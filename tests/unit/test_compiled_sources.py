"""What is compiled in place of the sources does what they do; what is unknown is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from resilient_ps.chaos.sim.run import run_seed
from resilient_ps.cli.compiled.building import MAKER_MODULE, compile_modules, prepare
from resilient_ps.cli.compiled.dataclass_methods import Unknown
from resilient_ps.cli.compiled.edits import Source
from resilient_ps.cli.compiled.named_tuples import MAKER
from resilient_ps.cli.compiled.rewriting import rewritten
from resilient_ps.cli.compiled.starting import KEPT, PACKAGE, compiled_folder, remove_old
from resilient_ps.cli.exits import run
from resilient_ps.cli.main import application

COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C compiler")
HEAD = "from __future__ import annotations\n"
DATACLASSES = """
    from dataclasses import dataclass, field, fields, replace
    from typing import ClassVar

    EMPTY = b""

    @dataclass(frozen=True, slots=True)
    class Frozen:
        SIZE: ClassVar[int] = 7
        a: int
        b: str = "b"
        kept: bool = field(default=False, kw_only=True)

    @dataclass(slots=True)
    class Mutable:
        a: int  # the first
        many: dict[int, str] = field(default_factory=dict)
        shared: bytes = field(default_factory=lambda: EMPTY, repr=False)
        pair: list[bool] = field(default_factory=lambda: [True, True])
        twice: int = field(init=False)

        def __post_init__(self) -> None:
            self.twice = 2 * self.a

    @dataclass(eq=False, slots=True)
    class Same:
        a: int = 1
"""
TUPLES = """
    from typing import NamedTuple

    LIMIT = 3
    _new = tuple.__new__

    class Pair(NamedTuple):
        a: int
        b: int = 0
        c: str = ""

    def pairs() -> list[Pair]:
        return [
            Pair(1),
            Pair(
                1,
                2,  # two, of course
            ),
            Pair(Pair(1, 2).a, 2, "c"),
            Pair(b=5, a=LIMIT),
            Pair(*(1, 2)),
            _new(Pair, (1, 2, "new")),
            _new(Pair, (Pair(4).a, 2, "é")),
        ]
"""


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the function that makes named tuples, where it belongs in a package."""
    root = tmp_path_factory.mktemp("maker")
    compile_modules(root, [MAKER_MODULE], lambda *_: None)
    return root


def text_of(text: str) -> str:
    source = HEAD + textwrap.dedent(text)
    return rewritten({"sample": Source("sample", source)})["sample"]


def loaded(text: str, name: str) -> Any:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def both(text: str) -> tuple[Any, Any]:
    before = HEAD + textwrap.dedent(text)
    return loaded(before, "sample_before"), loaded(text_of(text), "sample_after")


def test_dataclasses_are_made_compared_and_shown_as_before() -> None:
    for module in both(DATACLASSES):
        one = module.Frozen(1, kept=True)
        assert repr(one) == "Frozen(a=1, b='b', kept=True)"
        assert one == module.Frozen(1, "b", kept=True) != module.Frozen(1)
        assert {one: 1}[module.replace(module.Frozen(1), kept=True)] == 1
        assert one != (1, "b", True)
        assert module.Frozen.SIZE == one.SIZE == 7
        assert [field.name for field in module.fields(one)] == ["a", "b", "kept"]


def test_defaults_that_are_made_are_made_anew_each_time() -> None:
    for module in both(DATACLASSES):
        one, two = module.Mutable(3), module.Mutable(3)
        assert one == two
        one.many[1] = "x"
        assert (two.many, two.pair, two.twice) == ({}, [True, True], 6)
        assert one.shared is module.EMPTY
        assert module.Mutable(1, {2: "y"}, b"s", []).pair == []
        with pytest.raises(TypeError, match="unhashable"):
            {one: 1}  # noqa: B018


def test_what_is_compared_by_identity_still_is() -> None:
    for module in both(DATACLASSES):
        assert module.Same() != module.Same()


@needs_compiler
def test_named_tuples_are_the_same(maker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = next(maker.rglob("_make_tuple*.so"))
    spec = importlib.util.spec_from_file_location("_make_tuple", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setitem(sys.modules, MAKER, made)
    before, after = both(TUPLES)
    assert text_of(TUPLES).count("_make(") == 7
    assert after.pairs() == before.pairs()
    assert {type(each) for each in after.pairs()} == {after.Pair}
    with pytest.raises(TypeError, match="kind of tuple"):
        made.make(int, 1)


def test_lines_before_the_end_of_a_class_keep_their_numbers() -> None:
    before, after = textwrap.dedent(TUPLES).splitlines(), text_of(TUPLES).splitlines()
    assert len(before) + 1 == len(after)  # HEAD
    assert after[1:].index("class Pair(NamedTuple):") == before.index("class Pair(NamedTuple):")
    assert after[1 + before.index("LIMIT = 3")] == "LIMIT: _Constant = 3"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("@dataclass(order=True)\nclass Odd:\n    a: int\n", "order=True"),
        ("@dataclass\nclass Odd:\n    a: int = field(hash=False)\n", r"Odd\.a"),
        ("class Base: ...\n\n@dataclass\nclass Odd(Base):\n    a: int\n", "Odd inherits"),
    ],
)
def test_what_is_not_known_is_refused_by_name(source: str, named: str) -> None:
    with pytest.raises(Unknown, match=named):
        text_of(source)


# -- the whole package


SCRIPT = """
import json, sys
from resilient_ps.chaos.sim.run import run_seed
print(run_seed.__code__.co_filename)
print(json.dumps([run_seed(int(seed)).trace for seed in sys.argv[1:]]))
"""


@needs_compiler
def test_the_rewritten_package_runs_as_the_package_does(tmp_path: Path) -> None:
    """As Python: it is the text that is compiled. Compiled runs: `test_compiled_runs`."""
    files = prepare(PACKAGE, tmp_path)
    compile_modules(tmp_path, [MAKER_MODULE], lambda *_: None)
    seeds = [3, 4]
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, *map(str, seeds)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    file, traces = done.stdout.splitlines()
    assert file == str(tmp_path / "resilient_ps/chaos/sim/run.py")
    assert json.loads(traces) == [run_seed(seed).trace for seed in seeds]
    assert len(files) > 200


# -- the cache folder


class Stopped(Exception):
    pass


def stop_there(what: str, _done: int, _total: int) -> None:
    if what.startswith("making C"):
        raise Stopped


@needs_compiler
def test_who_is_interrupted_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Stopped):
        compiled_folder(stop_there)
    assert list((tmp_path / "resilient-ps/compiled").iterdir()) == []


def test_the_folders_used_last_are_kept(tmp_path: Path) -> None:
    for age in range(KEPT + 2):
        (tmp_path / f"folder-{age}").mkdir()
        os.utime(tmp_path / f"folder-{age}", (1000 - age, 1000 - age))
    (tmp_path / ".begun-long-ago").mkdir()
    os.utime(tmp_path / ".begun-long-ago", (1, 1))
    (tmp_path / ".begun-now").mkdir()
    remove_old(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".begun-now", *(f"folder-{age}" for age in range(KEPT))]


def test_without_a_compiler_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert run(application, ["simulate", "--compiled", "--seeds", "1"]) == 2
    assert "there is no no-such-compiler: install gcc" in capsys.readouterr().err
