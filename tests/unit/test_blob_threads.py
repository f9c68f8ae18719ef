"""How many calls to the object store a server makes at once."""

from __future__ import annotations

import pytest

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import Standby, StorePlace
from resilient_ps.cli.server import _blob_threads
from resilient_ps.runtime.blob_bridge import BLOB_THREADS


@pytest.mark.parametrize(("uploads", "threads"), [(1, BLOB_THREADS), (16, 16)])
def test_as_many_objects_are_in_flight_as_the_setting_says(uploads: int, threads: int) -> None:
    settings = CheckpointSettings(upload_concurrency=uploads)
    assert _blob_threads(Standby(StorePlace("s3://bucket/x"), settings)) == threads
