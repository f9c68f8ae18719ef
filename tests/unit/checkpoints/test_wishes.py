"""Which checkpoint is meant, and how a cluster's standby becomes options and back."""

from __future__ import annotations

import pytest
import typer

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import Standby, StorePlace
from resilient_ps.checkpoints.wish import Wish
from resilient_ps.cli.exits import run
from resilient_ps.cli.storing import with_standby
from resilient_ps.errors import BadInput
from resilient_ps.storage.names import CheckpointId

ID = CheckpointId.of(1, 17, "3fa9c2d1")


@pytest.mark.parametrize(
    ("text", "clocks", "created_s", "accepted"),
    [
        ("latest", {}, 0, True),
        ("clock:5", {"a": 5, "b": 3}, 0, True),
        ("clock:5", {"a": 6, "b": 3}, 0, False),
        ("clock:5", {}, 0, False),
        ("clock:b=5", {"a": 6, "b": 3}, 0, True),
        ("clock:c=5", {"a": 6, "b": 3}, 0, False),
        ("time:1970-01-01T00:01", {}, 60, True),
        ("time:1970-01-01T00:01", {}, 61, False),
        ("time:1970-01-01T02:01+02:00", {}, 60, True),
        ("time:100", {}, 101, False),
        ("1-17-3fa9c2d1", {}, 0, True),
        ("1-17-3fa9c2d2", {}, 0, False),
    ],
)
def test_a_wish_accepts_what_it_says(
    text: str, clocks: dict[str, int], created_s: int, accepted: bool
) -> None:
    wish = Wish.parse(text)
    assert wish.accepts(ID, clocks, created_s) is accepted
    assert Wish.parse(str(wish)) == wish


@pytest.mark.parametrize(
    "text",
    ["", "newest", "clock:", "clock:-1", "clock:x", "time:", "time:soon", "1-17", "x" * 1000],
)
def test_what_is_no_wish_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(BadInput, match="clock:N"):
        Wish.parse(text)


def parsed(*flags: str) -> tuple[int, Standby | None]:
    """What a command with these options is told."""
    found: list[Standby] = []
    app = typer.Typer(add_completion=False)

    @app.command()
    @with_standby()
    def command(*, standby: Standby) -> None:
        found.append(standby)

    return run(app, list(flags)), found[0] if found else None


@pytest.mark.parametrize(
    "standby",
    [
        Standby(),
        Standby(StorePlace("s3://b/p", "http://h:1", "eu-1", True), restore="none"),
        Standby(
            StorePlace("/folder"),
            CheckpointSettings(
                every_clocks=7, every_s=2.5, mtbf_h=0.5, keep_last=9, keep_hourly=2, keep_daily=3,
                cut_deadline_s=4.0, loss_grace_s=1.5, upload_bytes_per_s=1000,
                upload_share=0.5,
                overlay_bytes_max=2_000,
            ),
            "clock:a=4",
            "other",
        ),
    ],
)  # fmt: skip
def test_options_of_servers_say_the_same_again(standby: Standby) -> None:
    code, again = parsed(*standby.flags())
    assert code == 0
    assert again == standby


@pytest.mark.parametrize(
    "flags",
    [
        ("--checkpoint-every-s", "often"),
        ("--checkpoint-every-s", "-1"),
        ("--checkpoint-every-s", "nan"),
        ("--keep-last", "0"),
        ("--restore", "yesterday"),
        ("--mtbf-h", "0"),
    ],
)
def test_wrong_options_are_refused(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parsed(*flags) == (2, None)
    assert capsys.readouterr().err != ""
