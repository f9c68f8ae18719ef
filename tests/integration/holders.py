"""Processes that do the tasks of one graph together, and what must come of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from holder_program import EPOCHS, key_of, planted, ridge

import resilient_ps as ps
from resilient_ps.models.wavefront import BlockRidge

PROGRAM = Path(__file__).with_name("holder_program.py")
LEASE_TTL_S = 2
PATIENCE_S = 60.0
Line = tuple[str, ...]


class Holder:
    """One process; `lines` are what it has told so far."""

    def __init__(self, etcd: str, cluster: str, name: str, log: Path, **options: Any) -> None:
        command = [sys.executable, str(PROGRAM), etcd, cluster, name]
        asked = json.dumps({"lease_ttl_s": LEASE_TTL_S, **options})
        self._log = log
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                [*command, asked],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
            )
        self.lines: list[Line] = []
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._told:
                self.lines.append(tuple(line.split()))
                self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def wait_for(self, condition: Callable[[Line], bool], count: int = 1) -> list[Line]:
        """So many lines of a kind."""

        def found() -> list[Line]:
            return [line for line in self.lines if condition(line)]

        with self._told:
            self._told.wait_for(
                lambda: len(found()) >= count or not self._reader.is_alive(), PATIENCE_S
            )
            assert len(found()) >= count, f"{self.lines[-5:]}: {self.last_words()}"
            return found()

    def wait_to_hear(self, word: str, count: int = 1) -> list[Line]:
        return self.wait_for(lambda line: line[0] == word, count)

    def outcome(self, task: tuple[int, int]) -> str:
        """What became of the task in its middle: `did`, `fenced` or `rolled-back`."""
        told = tuple(map(str, task))
        lines = self.wait_for(lambda line: line[1:] == told and line[0] not in ("took", "waits"))
        return lines[0][0]

    def tasks(self, word: str) -> list[tuple[int, int]]:
        """(rank, step) of the lines that begin with this word."""
        return [(int(line[1]), int(line[2])) for line in self.lines if line[0] == word]

    def go_on(self) -> None:
        """The line for which it waits in the middle of a task."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait_for_end(self) -> None:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert code == 0, self.last_words()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a line that it did not read any more
                pipe.close()

    def last_words(self) -> str:
        return self._log.read_bytes()[-3000:].decode(errors="replace")


class Holders:
    """All processes that do tasks of the graph `name`."""

    def __init__(self, etcd: str, cluster: str, name: str, folder: Path, epochs: int) -> None:
        self.model: BlockRidge = ridge(name, epochs)
        self.all: list[Holder] = []
        self._at = etcd, cluster
        self._folder = folder

    @property
    def last_task(self) -> tuple[int, int]:
        """(rank, step)."""
        graph = self.model.schedule.graph
        return graph.lanes_total - 1, graph.steps

    def start(self, wait_in: Sequence[Any] = (), **options: Any) -> Holder:
        log = self._folder / f"holder-{len(self.all)}.log"
        asked = {"wait_in": list(wait_in), "epochs": self.model.epochs, **options}
        self.all.append(Holder(*self._at, self.model.name, log, **asked))
        return self.all[-1]

    def hear_waiting(self, task: tuple[int, int], *, but: Holder | None = None) -> Holder:
        """Who waits in the middle of this task (and is another one than this)."""
        told = ("waits", *map(str, task))
        pause = threading.Event()
        for _ in range(int(PATIENCE_S / 0.02)):
            heard = [each for each in self.all if each is not but and told in each.lines]
            if heard:
                return heard[0]
            for each in self.all:
                assert not each.process.poll(), each.last_words()
            pause.wait(0.02)
        raise AssertionError([each.lines[-3:] for each in self.all])

    def wait_for_end(self) -> None:
        for each in self.all:
            if each.process.poll() != -signal.SIGKILL:
                each.wait_for_end()

    def wrongs(self, client: ps.Client, earlier: Sequence[int] = ()) -> list[str]:
        """What is not as one process would have made it; each task must bear one signature.

        `earlier`: numbers of processes that have done tasks, too.
        """
        weights = client.table(f"{self.model.name}/weights")
        signed = client.table(f"{self.model.name}/signed")
        assert isinstance(weights, ps.SparseTable)
        assert isinstance(signed, ps.SparseTable)
        wrong = []
        if self.model.weights(weights).tobytes() != self.model.fit_alone(*planted()).tobytes():
            wrong.append("the weights differ from those of the serial order")
        twice = {2 * pid for pid in (*earlier, *(each.process.pid for each in self.all))}
        tasks = list(self.model.schedule.graph.serial_order())
        signatures = signed.pull(np.array([key_of(*task) for task in tasks], np.uint64))[:, 0]
        for task, signature in zip(tasks, signatures.tolist(), strict=True):
            if signature not in twice:
                wrong.append(f"task {task} is signed with {signature / 2}, not with one of {twice}")
        return wrong

    def signature(self, client: ps.Client, task: tuple[int, int]) -> float:
        """The number of the process whose work the task is."""
        signed = client.table(f"{self.model.name}/signed")
        assert isinstance(signed, ps.SparseTable)
        return float(signed.pull(np.array([key_of(*task)], np.uint64))[0, 0]) / 2

    def end(self) -> None:
        for each in self.all:
            each.end()


@contextmanager
def holders_of(
    etcd: str, cluster: str, name: str, folder: Path, epochs: int = EPOCHS
) -> Iterator[Holders]:
    """None of them outlives the block."""
    holders = Holders(etcd, cluster, name, folder, epochs)
    try:
        yield holders
    finally:
        holders.end()
