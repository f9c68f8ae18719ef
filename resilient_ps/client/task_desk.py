"""Where a holder asks for tasks, and says what became of them: the coordinator, whoever it is."""

from __future__ import annotations

import json
import time

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.coordinator_line import CoordinatorLine
from resilient_ps.client.graphs import find_graph
from resilient_ps.client.resuming import PAUSE_S, say
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.task_asks import FailedTask, Failure, Granted, TaskAsk, TaskTold
from resilient_ps.errors import (
    DeadlineExceeded,
    FixTheCall,
    NotFound,
    ResilientPsError,
    TaskFailed,
)

WAIT_S = 5.0
"""How long one question may wait at the coordinator; then it is put again."""
ANSWER_S = 2.5
"""How much longer than that the answer may take: then the coordinator is looked up again."""
REPORT_S = 5.0


class TaskDesk:
    """For one holder. `done` is the task that it has ended and not reported yet.

    `incarnation`: of the cluster, in which it works.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        graph: Graph,
        holder: str,
        namespaces: tuple[str, ...] | None,
        incarnation: int,
    ) -> None:
        self.done: Granted | None = None
        self.incarnation = incarnation
        self._catalogue = catalogue
        self._graph = graph.name
        self._what = f"graph {graph.name!r}"
        self._holder = holder
        self._namespaces = namespaces
        self._line = CoordinatorLine(catalogue.kv, catalogue.keys, catalogue.call_deadline_s)

    def ask_until(self, until_s: float) -> Granted | None:
        """The next task; None when the graph is done. `until_s`: monotonic time.

        Raises `TaskFailed`, `NotFound` where the graph was removed, `DeadlineExceeded` naming what
        it waited for, `Unavailable` where no coordinator answers by then.
        """
        while True:
            told = self._ask(until_s, self._namespaces, WAIT_S)
            if told.grant is not None or told.over == "done":
                return told.grant
            if told.over == "removed":
                raise self._removed()
            if told.failure is not None:
                raise self._failed(told.failure)
            if told.error:
                self._look_at_refusal(told)
            if time.monotonic() >= until_s:
                raise DeadlineExceeded(
                    f"{self._what}: no task could be granted to this process (holder "
                    f"{self._holder}) by the deadline; {told.waits_for or told.error}"
                )

    def report(self) -> None:
        """Say what is done, without asking for more. Raises `Unavailable`."""
        if self.done is not None:
            self._ask(time.monotonic() + REPORT_S, (), 0.0)

    def report_failure(self, task: Granted, why: str) -> bool:
        """The graph ends with this; False where the task is another holder's, or done, by now."""
        try:
            told = self._ask(time.monotonic() + REPORT_S, (), 0.0, FailedTask(task, why))
        except ResilientPsError as late:
            say(f"{self._what}: the coordinator could not be told that a task failed: {late}")
            return True
        return told.kind != "fenced" and told.over != "done"

    def close(self) -> None:
        """Close the connection."""
        self._line.close()

    def _ask(
        self,
        until_s: float,
        namespaces: tuple[str, ...] | None,
        wait_s: float,
        failed: FailedTask | None = None,
    ) -> TaskTold:
        wait_s = max(0.0, min(wait_s, until_s - time.monotonic()))
        done = self.done if failed is None else None
        ask = TaskAsk(self._graph, self._holder, namespaces, wait_s, done, failed, self.incarnation)
        question = json.dumps(ask.to_json())
        answer_s = wait_s + ANSWER_S
        told = TaskTold.from_json(self._line.ask(question, answer_s, until_s + ANSWER_S))
        if told.kind != "busy":
            self.done = None  # it is in etcd, or was refused for good
        return told

    def _look_at_refusal(self, told: TaskTold) -> None:
        """Raises what asking again would not mend."""
        if told.kind == "refused":
            raise FixTheCall(f"{self._what}: {told.error}")
        if told.kind == "unknown" and find_graph(self._catalogue, self._graph) is None:
            raise self._removed()
        say(f"{self._what}: {told.error}")
        if told.kind != "fenced":  # our lease was lost and is being renewed, or too many ask
            time.sleep(PAUSE_S)

    def _removed(self) -> NotFound:
        return NotFound(f"{self._what} was removed: its tasks are over")

    def _failed(self, failure: Failure) -> TaskFailed:
        namespace, n, step, why = failure
        return TaskFailed(
            f"{self._what}: {namespace}[{n}] failed at step {step}: {why}. When that is mended: "
            f"`resilient-ps ns retry {self._graph}`",
            namespace=namespace,
            n=n,
            step=step,
            why=why,
        )
