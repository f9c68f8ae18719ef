"""The project's own files, for the tests of packaging and house rules."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINKED = ("chaos", "coordinator", "storage")
PRODUCT = ("resilient_ps", *LINKED)


def product_modules() -> list[Path]:
    """Every module of the product once, relative to the root; links are not followed."""
    return sorted(
        path.relative_to(ROOT)
        for folder in PRODUCT
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents if parent != ROOT)
    )


def installed_name(module: Path) -> str:
    """Where a module lies in an installation: everything is below `resilient_ps`."""
    inside = module if module.parts[0] == "resilient_ps" else "resilient_ps" / module
    return inside.as_posix()


def copy_sources(target: Path) -> Path:
    """Copy what belongs to the project, without environments, caches and build products."""
    target.mkdir(exist_ok=True)
    for path in sorted(ROOT.iterdir()):
        if path.name in (*PRODUCT, "tests"):
            shutil.copytree(
                path,
                target / path.name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.so"),
            )
        elif path.is_file() and not path.name.startswith(".cov"):
            shutil.copy2(path, target)
    return target


def tool(name: str) -> str:
    """The path of a command that is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))
