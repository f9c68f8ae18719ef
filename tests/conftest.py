"""Settings for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# A shared machine may stop for longer than hypothesis allows an example: nothing is timed here.
settings.register_profile("untimed", deadline=None)
if "CI" not in os.environ:  # there, hypothesis has a profile of its own: untimed and repeatable
    settings.load_profile("untimed")
