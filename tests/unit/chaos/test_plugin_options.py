"""The pytest plugin: what it imports before it is used, and the options that it takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from resilient_ps.chaos.live.plugin import checked, from_text

# Whoever has resilient-ps installed pays for this in each of their test runs.
LOOK = """
import sys, pytest
before = set(sys.modules)
import resilient_ps.chaos.live.plugin
print(*sorted(set(sys.modules) - before))
"""


def test_nothing_but_the_plugin_itself_is_imported_before_a_fixture_is_used() -> None:
    look = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True
    )
    ours = {"resilient_ps", "resilient_ps.chaos", "resilient_ps.chaos.live"}
    assert set(look.stdout.split()) <= ours | {"resilient_ps.chaos.live.plugin", "shlex"}


def test_settings_are_read_as_numbers_and_texts() -> None:
    options = from_text("servers=4 etcd=3 store='s3://bucket/a prefix'")
    assert options == {"servers": 4, "etcd": 3, "store": "s3://bucket/a prefix"}
    assert from_text("") == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("servers", "write servers=VALUE"),
        ("server=3", "there is no option 'server'; there are servers, replicas"),
        ("servers=three", "servers='three' is not what it should be"),
        ("servers=-1", "servers='-1' is not what it should be"),
    ],
)
def test_a_wrong_setting_is_an_error_that_says_what_is_right(text: str, complaint: str) -> None:
    with pytest.raises(pytest.UsageError, match=complaint):
        from_text(text)


def test_a_wrong_marker_is_named() -> None:
    with pytest.raises(pytest.UsageError, match=r"the marker: there is no option 'nodes'"):
        checked({"nodes": 3}, "the marker")
    with pytest.raises(pytest.UsageError, match="store=3 is not"):
        checked({"store": 3}, "the marker")
