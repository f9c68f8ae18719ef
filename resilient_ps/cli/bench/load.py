"""A worker process for cases with several workers: it runs its case whenever it is told to.

It prints `ready`, then for each line on standard input runs the case once and prints the seconds.
It ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict

from resilient_ps.cli.bench.cases import Case, Load
from resilient_ps.client.connection import connect
from resilient_ps.client.worker import Worker
from resilient_ps.errors import Unavailable


class LoadProcess:
    """One such process, from the outside."""

    def __init__(
        self, etcd: str, cluster: str, job: str, case: Case, rows: int, rank: int, of: int
    ) -> None:
        fields = {"job": job, "case": asdict(case), "rows": rows, "rank": rank, "of": of}
        order = json.dumps(fields)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "resilient_ps.cli.bench.load", etcd, cluster, order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("ready")

    def begin(self) -> None:
        """Tell it to run its case."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()

    def seconds(self) -> float:
        """How long that took."""
        return float(self._expect(""))

    def _expect(self, what: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (what and line != what):
            raise Unavailable(f"a load process ended, or said {line!r}")
        return line

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """The process itself."""
    parser = argparse.ArgumentParser()
    for name in ("etcd", "cluster", "order"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    order = json.loads(arguments.order)
    case = Case(**order["case"])
    with connect(arguments.etcd, arguments.cluster) as client:
        rank = order["rank"]
        with client.worker(order["job"], rank, order["of"], "asp") as worker:
            _serve(worker, case, order["rows"], rank)


def _serve(worker: Worker, case: Case, rows: int, rank: int) -> None:
    load = Load(case, worker.table(case.table), rows, seed=rank)
    load.run()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(load.run(), flush=True)


if __name__ == "__main__":
    main()
