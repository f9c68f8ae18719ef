"""What gets installed: one top-level package with everything in it, and nothing beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from source_tree import LINKED, ROOT, copy_sources, installed_name, product_modules

pytestmark = pytest.mark.timeout(400)  # compiles twice, while others need the machine
OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


class Distributions(NamedTuple):
    wheel: Path
    sdist: Path
    wheel_from_sdist: Path


def build(sources: Path, out: Path, *kinds: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *kinds],
        cwd=sources,
        env={**OFFLINE, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


QUICK_COMPILER = """#!/bin/bash
for word; do
    case $before in -c) source=$word ;; -o) out=$word ;; esac
    before=$word
done
[ -n "$source" ] || exec c++ "$@" -O0
kept=$0.$(cat "$source" "${source%/*}"/*.h | md5sum | cut -c1-32).o
[ -e "$kept" ] || c++ "$@" -O0 -o "$kept" || exit
cp "$kept" "$out"
"""
"""The compiler without optimising, and what it has compiled once it does not compile again: what
is looked at here is what gets where."""


def quick_compiler(folder: Path) -> dict[str, str]:
    command = folder / "quick-c++"
    command.write_text(QUICK_COMPILER)
    command.chmod(0o755)
    return {"CC": str(command), "CXX": str(command)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    base = tmp_path_factory.mktemp("distribution")
    quick = quick_compiler(base)
    build(copy_sources(base / "one"), base / "both", **quick)  # an sdist, then a wheel from it
    build(copy_sources(base / "other"), base / "direct", "--wheel", **quick)
    (wheel,) = (base / "direct").glob("*.whl")
    (sdist,) = (base / "both").glob("*.tar.gz")
    (wheel_from_sdist,) = (base / "both").glob("*.whl")
    return Distributions(wheel, sdist, wheel_from_sdist)


@pytest.fixture(scope="module")
def installed(built: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
            *("--no-compile", "--target", str(target), str(built.wheel)),
        ],
        env=OFFLINE,
        check=True,
    )
    return target


def test_the_only_top_level_package_is_resilient_ps(built: Distributions) -> None:
    top = {name.split("/")[0] for name in names(built.wheel)}
    metadata = {name for name in top if name.endswith(".dist-info")}
    assert len(metadata) == 1
    assert top - metadata == {"resilient_ps"}


def test_every_module_is_in_the_wheel_and_nothing_else_is(built: Distributions) -> None:
    modules = {name for name in names(built.wheel) if name.endswith(".py")}
    assert modules == {installed_name(module) for module in product_modules()}
    for folder in LINKED:
        assert f"resilient_ps/{folder}/__init__.py" in modules
    assert "resilient_ps/coordinator/ring.py" in modules


def test_no_tests_are_in_the_wheel(built: Distributions) -> None:
    assert not [name for name in names(built.wheel) if "tests" in name or "conftest" in name]


def test_the_type_marker_the_licence_and_the_command_are_in_the_wheel(
    built: Distributions,
) -> None:
    inside = names(built.wheel)
    assert "resilient_ps/py.typed" in inside
    (licence,) = (name for name in inside if name.endswith("/LICENSE"))
    (entry_points,) = (name for name in inside if name.endswith("/entry_points.txt"))
    with zipfile.ZipFile(built.wheel) as archive:
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert b"resilient-ps = resilient_ps." in archive.read(entry_points)
        assert b"[pytest11]\nresilient_ps = resilient_ps." in archive.read(entry_points)


def test_what_reports_are_made_of_is_in_the_wheel(built: Distributions) -> None:
    parts = [
        p for p in (ROOT / "chaos" / "report").iterdir() if p.suffix in (".html", ".css", ".js")
    ]
    assert len(parts) >= 4
    assert {f"resilient_ps/chaos/report/{part.name}" for part in parts} <= names(built.wheel)
    assert {f"resilient_ps/cli/bench/{name}" for name in ("page.html", "panels.js")} <= names(
        built.wheel
    )


def test_what_compiled_machines_are_made_with_is_in_the_wheel(built: Distributions) -> None:
    assert "resilient_ps/cli/compiled/make_tuple.c" in names(built.wheel)


def test_the_wheel_built_from_the_sdist_is_the_same(built: Distributions) -> None:
    assert names(built.wheel_from_sdist) == names(built.wheel)
    with zipfile.ZipFile(built.wheel) as one, zipfile.ZipFile(built.wheel_from_sdist) as other:
        for name in sorted(names(built.wheel)):
            if not name.endswith("/RECORD"):
                assert one.read(name) == other.read(name), name


def test_the_sdist_holds_what_a_build_needs_and_no_tests(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "resilient_ps/py.typed"} <= inside
    assert not [name for name in inside if name.startswith("tests")]


def test_a_users_own_storage_package_does_not_get_in_the_way(
    installed: Path, tmp_path: Path
) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "__init__.py").write_text("OWNER = 'the user'\n")
    program = (
        "import storage, resilient_ps.storage, resilient_ps.coordinator.ring as ring\n"
        "print(storage.OWNER, hasattr(resilient_ps.storage, 'OWNER'))\n"
        "print(ring.Ring((ring.RingMember('a'),)).owners(0, 1))\n"
        "print(ring.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "the user False",
        "('a',)",
        str(installed / "resilient_ps" / "coordinator" / "ring.py"),
    ]


def test_the_sources_of_the_native_module_are_in_the_sdist_and_not_in_the_wheel(
    built: Distributions,
) -> None:
    sources = {
        f"resilient_ps/native/{path.name}" for path in (ROOT / "resilient_ps/native").iterdir()
    }
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert len(sources) > 5
    assert sources <= inside
    assert "resilient_ps/_native.pyi" in names(built.wheel)
    assert not sources & names(built.wheel)


# Without what finds the modules of an editable installation, this one's native module among them.
ENGINE = """
import sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in getattr(f, "__module__", "")]
import resilient_ps.engine as e
print(e.ENGINE)
"""


def engine_of(installed: Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ENGINE],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler here")
def test_with_a_compiler_the_native_module_is_installed_and_used(
    installed: Path, tmp_path: Path
) -> None:
    assert engine_of(installed, tmp_path).stdout == "native\n"
    assert engine_of(installed, tmp_path, RESILIENT_PS_KERNELS="numba").stdout == "numba\n"
    wrong = engine_of(installed, tmp_path, RESILIENT_PS_KERNELS="fortran")
    assert "use native or numba, or unset it" in wrong.stderr


def test_without_a_compiler_the_installation_succeeds_and_numba_is_used(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path / "sources")
    no_compiler = {"CC": "/no/compiler", "CXX": "/no/compiler"}
    build(sources, tmp_path / "out", "--wheel", **no_compiler)
    (wheel,) = (tmp_path / "out").glob("*.whl")
    assert not [name for name in names(wheel) if name.endswith(".so")]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    assert engine_of(tmp_path / "installed", tmp_path).stdout == "numba\n"
    refused = engine_of(tmp_path / "installed", tmp_path, RESILIENT_PS_KERNELS="native")
    assert "install a C++ compiler, then install resilient-ps again" in refused.stderr
