"""Which modules a run of the simulator consists of, and what is compiled in place of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from resilient_ps.cli.compiled.constants import made_final
from resilient_ps.cli.compiled.dataclass_methods import written_out
from resilient_ps.cli.compiled.edits import Source
from resilient_ps.cli.compiled.named_tuples import kinds_in, made_quickly

PACKAGE = "resilient_ps"
FIRST = f"{PACKAGE}.chaos.sim.run"
DATACLASSES_OF_DATACLASSES = (
    "tables.initialisers",
    "tables.optimisers",
    "tables.spec",
    "storage.manifest",
    "storage.shard_index",
)
LEFT_OUT = {
    PACKAGE,
    *(f"{PACKAGE}.{name}" for name in DATACLASSES_OF_DATACLASSES),
    f"{PACKAGE}.tables.dense",  # is copied by `copy.copy`
    f"{PACKAGE}.tables.parameters",  # compares arrays
    f"{PACKAGE}.routing",  # has cached properties
    f"{PACKAGE}.chaos.checkers.verdict",  # these three go from process to process
    f"{PACKAGE}.chaos.sim.outcome",
    f"{PACKAGE}.chaos.sim.schedule",
}
"""Modules that stay as they are. Little time is spent there."""


def file_of(root: Path, name: str) -> Path | None:
    """The source of a module below `root`, where the package is; None: it is none of ours."""
    path = root.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def sources_of(root: Path) -> dict[str, Source]:
    """The modules that a run imports, by name."""
    sources: dict[str, Source] = {}
    names = [FIRST]
    while names:
        name = names.pop()
        file = file_of(root, name)
        if name in sources or file is None:
            continue
        sources[name] = Source(name, file.read_text())
        names += _imported(sources[name].tree)
    return dict(sorted(sources.items()))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rewritten(sources: Mapping[str, Source]) -> dict[str, str]:
    """What is compiled of each module. Raises Unknown where one is written in another way."""
    kinds = kinds_in(sources.values())
    texts: dict[str, str] = {}
    for name, source in sources.items():
        if name in LEFT_OUT or not source.tree.body[1:]:
            continue
        quick = Source(name, source.edited(made_quickly(source, kinds)))
        final = Source(name, quick.edited(made_final(quick)))
        texts[name] = final.edited(written_out(final))
    return texts
