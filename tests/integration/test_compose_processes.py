"""What deploy/compose.yaml says, as plain processes: its commands, its environment, no container.

Host names become loopback ports, MinIO is played by SeaweedFS, and the one-shot service that makes
the bucket by a put of our own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from resilient_ps.coordinator.runtime.processes import find_etcd
from resilient_ps.errors import NotFound
from resilient_ps.runtime.spawn import free_ports
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

sys.path.append(str(Path(__file__).parents[1] / "packaging"))
from compose import FOLDER, load, words

PROGRAM = [sys.executable, "-m", "resilient_ps.cli.main"]
PATIENCE_S = 90.0
BUCKET = "checkpoints"
FEW_EPOCHS = ["--epochs", "10"]
FAST_ETCD = ["--heartbeat-interval", "50", "--election-timeout", "500"]


class Composed:
    """The services as commands of this machine."""

    def __init__(self, seaweedfs: SeaweedFS, folder: Path) -> None:
        given = {"STORE_USER": seaweedfs.access_key, "STORE_PASSWORD": seaweedfs.secret_key}
        self.services: dict[str, Any] = load(given)["services"]
        self.folder = folder
        self._names: dict[str, str] = {"minio:9000": seaweedfs.endpoint.removeprefix("http://")}
        names = {f"{name}:{port}" for name in self.services for port in self._ports_of(name)}
        for name, port in zip(sorted(names), free_ports(len(names)), strict=True):
            self._names.setdefault(name, f"127.0.0.1:{port}")

    def _ports_of(self, name: str) -> list[str]:
        text = self.services[name].get("command", "")
        text = text if isinstance(text, str) else " ".join(text)
        return re.findall(r"0\.0\.0\.0:([0-9]+)", text)

    def here(self, service: str, text: str) -> str:
        """With loopback ports in place of host names and of `0.0.0.0`, and our folder of `/`."""
        text = re.sub(r"\b0\.0\.0\.0:", f"{service}:", text)
        for name, address in self._names.items():
            text = text.replace(name, address)
        text = text.replace("/var/lib/etcd", str(self.folder / service))
        return text.replace("/data/", f"{FOLDER}/")

    def start(self, service: str, *, more: list[str] = []) -> subprocess.Popen[bytes]:  # noqa: B006
        """What the container of this service would run."""
        spec = self.services[service]
        command = words(self.here(service, spec["command"]))
        entrypoint = spec.get("entrypoint", PROGRAM)
        own = {n: self.here(service, v) for n, v in spec.get("environment", {}).items()}
        out = (self.folder / f"{service}.log").open("wb")
        return subprocess.Popen(
            [*entrypoint, *command, *more], env={**os.environ, **own}, stdout=out, stderr=out
        )

    def cli(self, *arguments: str) -> dict[str, Any]:
        """`docker compose run --rm cli ...`."""
        own = self.services["cli"]["environment"]
        environment = {name: self.here("cli", value) for name, value in own.items()}
        done = subprocess.run(
            [*PROGRAM, *arguments, "--json"],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def log(self, service: str) -> str:
        return (self.folder / f"{service}.log").read_bytes().decode(errors="replace")


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Composed]:
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    for name in [each for each in os.environ if each.startswith(("AWS_", "RESILIENT_PS_S3"))]:
        monkeypatch.delenv(name)
    with SeaweedFS(bucket=BUCKET) as seaweedfs:
        yield Composed(seaweedfs, tmp_path)


def test_the_whole_installation_trains_makes_checkpoints_and_resumes(composed: Composed) -> None:
    with ExitStack() as stack:

        def running(service: str, *more: str) -> subprocess.Popen[bytes]:
            process = composed.start(service, more=list(more))
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        for number in (1, 2, 3):
            running(f"etcd{number}", *FAST_ETCD)
        wait_for_etcd(composed)
        servers = [running(f"server{number}") for number in (1, 2, 3)]
        train = running("train", *FEW_EPOCHS)
        assert train.wait(PATIENCE_S) == 0, composed.log("train")
        assert "begins at its first clock" in composed.log("train")
        assert all(server.poll() is None for server in servers), composed.log("server1")
        (job,) = composed.cli("job", "ls")["jobs"]
        assert (job["job"], job["state"]) == ("sample", "done")
        listed = composed.cli("checkpoint", "ls")["checkpoints"]
        assert listed[0]["state"] == "complete"
        assert composed.cli("checkpoint", "verify")["checkpoints"][0]["good"] is True
        shown = composed.cli("checkpoint", "show")
        assert [each["table"] for each in shown["tables"]] == ["sample/weights"]
        assert [each["state"] for each in shown["jobs"]] == ["done"]
        metrics = re.findall(r'"address": "(127\.0\.0\.1:[0-9]+)"', composed.log("server1"))
        assert len(metrics) == 1


def wait_for_etcd(composed: Composed) -> None:
    """As `depends_on` does, by the health check of the service."""
    own = composed.here("server1", composed.services["server1"]["environment"]["RESILIENT_PS_ETCD"])
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        done = subprocess.run(
            [*PROGRAM, "status", "--json", "--etcd", own, "--cluster", "demo"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode == 2:  # it answers: there is no such cluster yet
            return
    pytest.fail(composed.log("etcd1"))
