"""Log lines: one per event whatever stands in the fields, for people and for programs."""

from __future__ import annotations

import json
import logging
import re
from io import StringIO
from typing import Any

import numpy as np
import pytest

from resilient_ps.errors import BadInput
from resilient_ps.runtime.logs import MAX_FIELD_CHARS, Logger, route_logging
from resilient_ps.runtime.repeats import MAX_LINES, QUIET_NS, Repeats

NASTY = 'a\nb "c" \x1b[31m \u2028 \ud800'


def lines(format: str, **fields: Any) -> list[str]:
    stream = StringIO()
    Logger(stream, format=format).log("info", "some event", fields)
    return stream.getvalue().split("\n")[:-1]


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_event_is_one_line_whatever_a_peer_sent(format: str) -> None:
    (line,) = lines(format, why=NASTY, raw=NASTY.encode(errors="replace"))
    assert line.isprintable()
    assert len(line.splitlines()) == 1


def test_json_lines_can_be_read_back() -> None:
    (line,) = lines("json", n=1, ratio=0.5, none=None, yes=True, raw=b"\xff", array=np.arange(2))
    told = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "info",
        "event": "some event",
        "n": 1,
        "ratio": 0.5,
        "none": None,
        "yes": True,
        "raw": "\ufffd",
        "array": "[0 1]",
    }


def test_text_lines_quote_only_what_needs_it() -> None:
    (line,) = lines("text", peer="127.0.0.1:70", why="two words", n=3)
    assert line.partition(" ")[2] == 'info    some event  peer=127.0.0.1:70 why="two words" n=3'


def test_fields_are_bounded() -> None:
    (line,) = lines("json", body="x" * 1_000_000)
    assert len(line) < MAX_FIELD_CHARS + 200


def test_what_is_below_the_level_is_not_written() -> None:
    stream = StringIO()
    log = Logger(stream, format="json", level="warning").bind(server="s1")
    for level in ("debug", "info", "warning", "error", "no such level"):
        log.log(level, level, {})
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in told] == ["warning", "error", "no such level"]
    assert all(line["server"] == "s1" for line in told)


class HandClock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


def test_what_goes_wrong_again_and_again_is_told_once_in_ten_seconds_and_counted() -> None:
    stream, clock = StringIO(), HandClock()
    log = Logger(stream, format="json", repeats=Repeats(clock))
    for _ in range(101):
        log.bind(server="s1").warning("etcd call failed", error="unavailable")
        clock.ns += QUIET_NS // 50
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("repeated") for line in told] == [None, 49, 49]


def test_other_lines_and_what_is_no_warning_are_all_told() -> None:
    stream = StringIO()
    log = Logger(stream, format="json", repeats=Repeats(HandClock()))
    for error in ("unavailable", "no space", "unavailable"):
        log.warning("etcd call failed", error=error)
        log.info("a worker joined")
    told = [json.loads(line).get("error") for line in stream.getvalue().splitlines()]
    assert told == ["unavailable", None, "no space", None, None]


def test_only_so_many_lines_are_remembered() -> None:
    repeats = Repeats(HandClock())
    assert [repeats.withheld(str(n)) for n in range(MAX_LINES + 1)] == [0] * (MAX_LINES + 1)
    assert repeats.withheld("0") == 0  # forgotten
    assert repeats.withheld(str(MAX_LINES)) is None


def test_without_a_terminal_lines_are_json() -> None:
    (line,) = lines("auto")
    assert json.loads(line)["event"] == "some event"


@pytest.mark.parametrize("format", ["text", "json", "auto"])
def test_a_closed_stream_does_not_stop_the_program(format: str) -> None:
    stream = StringIO()
    log = Logger(stream, format=format)
    stream.close()
    log.info("nobody reads this")


@pytest.mark.parametrize("flags", [{"format": "xml"}, {"level": "loud"}])
def test_an_unknown_format_or_level_is_an_error(flags: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="is unknown: use one of"):
        Logger(StringIO(), **flags)


def test_what_is_logged_by_way_of_the_standard_library_becomes_lines_too() -> None:
    stream, ours = StringIO(), logging.getLogger("resilient_ps")
    before = ours.handlers, ours.propagate
    try:
        route_logging(Logger(stream, format="json", bound={"server": "s1"}))
        logging.getLogger("resilient_ps.some.module").warning("watch of %r ended", b"x")
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("resilient_ps.some.module").exception("failed")
    finally:
        ours.handlers, ours.propagate = before
    warned, failed = [json.loads(line) for line in stream.getvalue().splitlines()]
    del warned["time"]
    assert warned == {
        "level": "warning",
        "event": "watch of b'x' ended",
        "server": "s1",
        "logger": "resilient_ps.some.module",
    }
    assert failed["level"] == "error"
    assert "ValueError: why" in failed["traceback"]
