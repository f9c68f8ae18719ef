"""What each replica of a server holds, as a digest: equal logs give equal digests.

    Ask "digests"  ->  Told {"replicas": [{"shard": 3, "role": ..., "lsn": ..., "digest": ...}]}

For checks of a cluster at rest: all that the server holds is read once, and it serves nobody until
that is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilient_ps.replication.replica import Replica

QUESTION = "digests"


def digests_told(replicas: Mapping[int, Replica]) -> dict[str, Any]:
    """The answer of a server with these replicas, by shard."""
    return {
        "replicas": [
            {
                "shard": number,
                "role": replica.role,
                "lsn": replica.shard.lsn,
                "digest": replica.shard.digest(),
            }
            for number, replica in sorted(replicas.items())
            if replica.shard is not None
        ]
    }
