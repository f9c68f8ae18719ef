"""The result inside a report: put there as JSON, read back by `chaos replay` and by programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from resilient_ps.chaos.result import FORMAT
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import loads_strictly

ELEMENT = "result"
BEGIN = f'<script type="application/json" id="{ELEMENT}">'
END = "</script>"
MAX_BYTES = 1 << 28


def script_text(document: Any) -> str:
    """`document` as JSON that may stand in a script element: nothing in it ends the element.

    Numbers that JSON does not know (nan, infinite) become null.
    """
    text = json.dumps(_finite(document), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def embedded(path: Path) -> dict[str, Any]:
    """The result in the report at `path`, as `RunResult.as_json` gives it.

    Raises `BadInput` naming the file when it is not there, no report, or was changed by hand.
    """
    text = _text(path)
    if text.count(BEGIN) != 1:
        raise BadInput(f"{path} is no report of `resilient-ps chaos run`: it holds no result")
    begin = text.index(BEGIN) + len(BEGIN)
    end = text.find(END, begin)
    if end < 0:
        raise BadInput(f"{path}: the file breaks off within the result: make the report again")
    try:
        document = loads_strictly(text[begin:end])
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: the result in it is no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInput(f"{path}: what is embedded is not the result of a {FORMAT}")
    return document


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInput(f"{path} is larger than any report ({MAX_BYTES >> 20} MiB)")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read the report {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is no report of `resilient-ps chaos run`: not a text") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
