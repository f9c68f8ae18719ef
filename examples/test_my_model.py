"""My model survives: tests with the fixtures that come with resilient-ps. Run them with pytest."""

from __future__ import annotations

from pathlib import Path

import pytest
from my_train import distance, samples_seen, train

TRAINING = Path(__file__).with_name("my_train.py")


def test_my_model_survives_a_server_kill(chaos_cluster, faults):
    with chaos_cluster.connect() as client, client.worker("fit", rank=0, of=1) as worker:
        train(worker, clocks=20)
        faults.kill_primary(shard=0)
        train(worker, clocks=100)
        assert distance(client) < 0.1


@pytest.mark.chaos_cluster(servers=2)
def test_no_sample_counts_twice_when_a_worker_is_killed(chaos_cluster, faults):
    job = chaos_cluster.start(TRAINING, "--clocks", "150", ranks=2)
    with faults.kill("w1"):  # at the end of the block it is started again
        pass
    job.wait()
    with chaos_cluster.connect() as client:
        assert samples_seen(client) == 2 * 150 * 16
