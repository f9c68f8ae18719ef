"""Graphs of tasks in files: TOML and YAML, which `Graph.from_mapping` then understands."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from resilient_ps.coordinator.graph import JSON_BYTES_MAX, Graph
from resilient_ps.errors import BadInput, NotFound

if TYPE_CHECKING:
    from os import PathLike

FILE_BYTES_MAX = 8 * JSON_BYTES_MAX  # comments and blanks are free


class _Loader(yaml.SafeLoader):
    """As `SafeLoader`, but a name that is given twice is an error: the first would be lost."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(
                problem="a name is given twice", problem_mark=node.start_mark
            )
        return mapping


def read_graph(path: str | PathLike[str]) -> Graph:
    """See `Graph.from_file`."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            raw = opened.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {file}") from error
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise BadInput(f"{file} has more than {FILE_BYTES_MAX} bytes: too long for a graph")
    return Graph.from_mapping(_parsed(file, raw), str(file))


def _parsed(file: Path, raw: bytes) -> object:
    suffix = file.suffix.lower()
    try:
        if suffix == ".toml":
            return tomllib.loads(raw.decode())
        if suffix in (".yaml", ".yml"):
            return yaml.load(raw.decode(), _Loader)  # a subclass of the safe one
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        told = " ".join(str(error).split())
        raise BadInput(f"{file} is no {suffix[1:].upper()}: {told}") from error
    raise BadInput(f"{file}: a graph is in a file whose name ends with .toml, .yaml or .yml")
