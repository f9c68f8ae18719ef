"""What may be done to a cluster that somebody runs, and when it is too much."""

from __future__ import annotations

import pytest

from resilient_ps.chaos.faults.attaching import (
    ATTACHABLE,
    ENDING,
    HEALED_BY_US,
    SteadyState,
    allowed_kinds,
)
from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.errors import BadInput


def names(*allow: str) -> set[str]:
    return {kind.name for kind in allowed_kinds(allow)}


def test_without_a_word_only_what_is_healed_is_allowed() -> None:
    assert names() == set(HEALED_BY_US)
    assert not names() & ENDING


def test_of_a_group_that_is_allowed_what_is_possible() -> None:
    assert names("pause") == {name for name in ATTACHABLE if KINDS[name].group == "pause"}
    assert names("etcd") == {"lease-revoke"}
    assert names("kill-worker", "drain") == {"kill-worker", "drain"}


@pytest.mark.parametrize(
    ("allow", "why"),
    [
        ("one-way", "nothing of ours stands between"),
        ("partition", "nothing of ours stands between"),
        ("network", "nothing of ours stands between"),
        ("store", "reached without us"),
        ("etcd-restart", "others may use your etcd"),
        ("kill-etcd", "not looked for here"),
        ("disk-full", "would be left so"),
        ("gil", "take such orders"),
        ("clock-jump", "started anew by us"),
        ("scale-out", "started by you"),
        ("nonsense", "no fault 'nonsense'"),
    ],
)
def test_what_is_not_possible_is_refused_with_a_reason(allow: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        allowed_kinds((allow,))
    with pytest.raises(BadInput, match=why):
        allowed_kinds(("pause-server", allow) if allow in KINDS else (allow,))


def test_every_kind_is_possible_or_has_a_reason() -> None:
    for name in KINDS:
        if name not in ATTACHABLE:
            with pytest.raises(BadInput, match=f"--allow {name}: "):
                allowed_kinds((name,))


def test_a_shard_that_is_silent_for_too_long_is_named() -> None:
    steady = SteadyState(outage_most_s=5.0)
    assert steady.breach(100.0, {0: 99.9, 1: 95.1}, None) == ""
    assert "shard 1 has acknowledged nothing for 5.1 s" in steady.breach(100.0, {0: 99, 1: 94.9}, 0)


def test_too_few_pushes_break_the_steady_state_once_they_are_known() -> None:
    steady = SteadyState(outage_most_s=5.0, pushes_least_per_s=10.0)
    assert steady.breach(1.0, {0: 1.0}, None) == ""
    assert steady.breach(1.0, {0: 1.0}, 10.0) == ""
    assert "9.9 pushes a second" in steady.breach(1.0, {0: 1.0}, 9.9)


def test_pushes_are_counted_over_a_time_that_outlasts_an_outage() -> None:
    assert SteadyState(outage_most_s=8.0).window_s > 8.0
    assert SteadyState(outage_most_s=1.0).window_s >= 5.0
