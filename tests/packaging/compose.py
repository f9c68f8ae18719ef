"""deploy/compose.yaml as data, with its variables filled in as `docker compose` does it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy"
_VARIABLE = re.compile(r"\$\$|\$\{([A-Z_]+)(?::-([^}]*))?\}")


def filled_in(text: str, environment: dict[str, str]) -> str:
    """`${NAME:-default}` replaced, and `$$` by `$`."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return environment.get(found[1]) or found[2] or ""

    return _VARIABLE.sub(value, text)


def load(environment: dict[str, str]) -> dict[str, Any]:
    """The file as it is after interpolation. Anchors and merges are YAML's own."""
    loaded = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return dict(_fill(loaded, environment))


def _fill(value: Any, environment: dict[str, str]) -> Any:
    match value:
        case str():
            return filled_in(value, environment)
        case list():
            return [_fill(each, environment) for each in value]
        case dict():
            return {key: _fill(each, environment) for key, each in value.items()}
        case _:
            return value


def words(command: str | list[str]) -> list[str]:
    """A command as the arguments that the container gets."""
    return shlex.split(command) if isinstance(command, str) else list(command)
