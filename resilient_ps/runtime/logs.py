"""Structured logs: one line per event, for people or for programs.

    2026-11-29T18:00:00.123Z info  peer refused  peer=client:7 why="not the protocol"
    {"time": "2026-11-29T18:00:00.123Z", "level": "info", "event": "peer refused", ...}

What peers send may stand in fields: every value is escaped, so a line stays a line. A warning or an
error that is the same as one of the last ten seconds is withheld; the next one says `repeated=49`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from resilient_ps.errors import BadInput
from resilient_ps.runtime.clock import wall_time
from resilient_ps.runtime.repeats import Repeats

Format = Literal["auto", "text", "json"]
FORMATS = ("auto", "text", "json")
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MAX_FIELD_CHARS = 8192

_PLAIN = re.compile(r"[\w.:/@+\-\[\]%,]+", re.ASCII)


class Logger:
    """Writes log lines to a stream. Safe to use from several threads.

    `format="auto"`: text on a terminal, JSON lines otherwise. `level`: the least that is written.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        format: str = "auto",
        level: str = "info",
        bound: Mapping[str, Any] | None = None,
        repeats: Repeats | None = None,
    ) -> None:
        self._stream = stream or sys.stderr
        self._format = _checked(format, FORMATS, "log format")
        self._level = _checked(level, LEVELS, "log level")
        self._bound = dict(bound or {})
        self._repeats = repeats or Repeats()

    def bind(self, **fields: Any) -> Logger:
        """A logger that adds these fields to every line."""
        bound = {**self._bound, **fields}
        return Logger(
            self._stream,
            format=self._format,
            level=self._level,
            bound=bound,
            repeats=self._repeats,
        )

    def log(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        """Write one line. An unknown level counts as an error: it must not get lost."""
        rank = LEVELS.get(level, LEVELS["error"])
        if rank < LEVELS[self._level]:
            return
        merged = {**self._bound, **fields}
        if rank >= LEVELS["warning"]:
            withheld = self._repeats.withheld(f"{level} {event} {merged}")
            if withheld is None:
                return
            if withheld:
                merged["repeated"] = withheld
        try:
            self._stream.write(self._line(level, event, merged))
            self._stream.flush()
        except (OSError, ValueError):
            pass  # a full disk or a closed stderr is no reason to stop serving

    def _line(self, level: str, event: str, fields: Mapping[str, Any]) -> str:
        as_json = self._format == "json" or (self._format == "auto" and not self._stream.isatty())
        return _json_line(level, event, fields) if as_json else _text_line(level, event, fields)

    def debug(self, event: str, **fields: Any) -> None:
        self.log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self.log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self.log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self.log("error", event, fields)


class _FromLogging(logging.Handler):
    """Takes in what was logged by way of the standard library."""

    def __init__(self, log: Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"logger": record.name}
        if record.exc_info:
            fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        self._log.log(record.levelname.lower(), record.getMessage(), fields)


def route_logging(log: Logger) -> None:
    """Let everything that this package logs by way of `logging` become lines of `log`."""
    ours = logging.getLogger("resilient_ps")
    ours.handlers = [_FromLogging(log)]
    ours.propagate = False


def _checked(value: str, allowed: Any, what: str) -> str:
    if value not in allowed:
        raise BadInput(f"{what} {value!r} is unknown: use one of {', '.join(allowed)}")
    return value


def _json_line(level: str, event: str, fields: Mapping[str, Any]) -> str:
    line = {"time": wall_time(), "level": level, "event": event}
    line.update((str(name), _plain(value)) for name, value in fields.items())
    return json.dumps(line) + "\n"


def _text_line(level: str, event: str, fields: Mapping[str, Any]) -> str:
    told = "".join(f" {name}={_quoted(_plain(value))}" for name, value in fields.items())
    return f"{wall_time()} {level:<7} {json.dumps(event)[1:-1]} {told}\n".replace(" \n", "\n")


def _plain(value: Any) -> Any:
    """What JSON can hold; anything else as bounded text."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text[:MAX_FIELD_CHARS]


def _quoted(value: Any) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
