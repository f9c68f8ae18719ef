"""What a holder of tasks asks the coordinator, and what it is told: values, and their JSON.

    {"task": {"graph": "ctr", "holder": "box-17-a1b2", "namespaces": null, "wait_s": 10,
              "done": [3, 7, 12], "failed": null, "incarnation": 1}}

One question may say that a task is done (or failed), and asks for the next one. The answer may come
later, up to `wait_s` seconds: as soon as there is a task, or when there will never be one. It is
exactly one of: a grant, the graph's end, nothing yet, or an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from resilient_ps.coordinator.fields import INT64_MAX
from resilient_ps.coordinator.graph import LANES_MAX, STEPS_MAX
from resilient_ps.coordinator.keys import check_name, check_namespace
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import short

SUBJECT = "task"
WAIT_MOST_S = 10.0
SELECTED_MAX = 64  # namespaces that a holder may ask for by name
WHY_CHARS_MAX = 500

Over: TypeAlias = Literal["done", "failed", "removed"]
ErrorKind: TypeAlias = Literal["fenced", "unknown", "refused", "busy"]


class Granted(NamedTuple):
    """A task in the hands of a holder. `token` is the rank's incarnation, and only grows."""

    rank: int
    step: int
    token: int


class FailedTask(NamedTuple):
    """A task whose program ended with an error. `why` is for people."""

    task: Granted
    why: str


class Failure(NamedTuple):
    """Why a graph failed: which task did, and what its program said."""

    namespace: str
    n: int
    step: int
    why: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class TaskAsk:
    """`namespaces`: of which a task is wanted; None: of any; (): of none, it only reports.

    `done`: a task that is done on all shards. `failed`: one that has failed. Not both.
    `incarnation`: of the cluster, in which that was (0: nothing is reported); what was before a
    rollback counts no more.
    """

    graph: str
    holder: str
    namespaces: tuple[str, ...] | None = None
    wait_s: float = WAIT_MOST_S
    done: Granted | None = None
    failed: FailedTask | None = None
    incarnation: int = 0

    @property
    def report(self) -> Granted | FailedTask | None:
        """What it says of a task."""
        return self.failed if self.done is None else self.done

    def to_json(self) -> dict[str, Any]:
        """The question, as the object that is sent."""
        failed = None
        if self.failed is not None:
            failed = {**self.failed.task._asdict(), "why": self.failed.why[:WHY_CHARS_MAX]}
        asked = {
            "graph": self.graph,
            "holder": self.holder,
            "namespaces": None if self.namespaces is None else list(self.namespaces),
            "wait_s": self.wait_s,
            "done": None if self.done is None else list(self.done),
            "failed": failed,
            "incarnation": self.incarnation,
        }
        return {SUBJECT: asked}

    @classmethod
    def from_json(cls, fields: object) -> TaskAsk:
        """What is below "task". Raises `BadInput` for what is no such question."""
        asked = _object("a question for a task", fields)
        names = asked.get("namespaces")
        if names is not None:
            if not isinstance(names, list) or len(names) > SELECTED_MAX:
                raise BadInput(f"namespaces: a list of at most {SELECTED_MAX}, or null for all")
            names = tuple(check_namespace(name) for name in names)
        done, failed = asked.get("done"), asked.get("failed")
        if done is not None and failed is not None:
            raise BadInput("a task is done or failed: report one of both")
        reports = done is not None or failed is not None
        return cls(
            graph=check_name("graph", asked.get("graph")),  # type: ignore[arg-type]  # it is checked
            holder=check_name("holder", asked.get("holder")),  # type: ignore[arg-type]
            namespaces=names,
            wait_s=_seconds(asked.get("wait_s")),
            done=None if done is None else _granted("done", done),
            failed=None if failed is None else _failed(failed),
            incarnation=_whole("incarnation", asked.get("incarnation"), int(reports), INT64_MAX),
        )


@dataclass(frozen=True, slots=True)
class TaskTold:
    """The answer; one of `grant`, `over`, `nothing` and `error` is given.

    `nothing`: not yet; `waits_for` says for what. `kind` of an error: "fenced": another holder was
    granted the reported task; "unknown": there is no such graph, namespace or holder; "refused":
    the report cannot be; "busy": too many are waiting, ask again later. `elected` False: the
    server that was asked is not the coordinator (any more).
    """

    grant: Granted | None = None
    over: Over | None = None
    failure: Failure | None = None
    nothing: bool = False
    waits_for: str = ""
    error: str = ""
    kind: ErrorKind | None = None
    elected: bool = field(default=True, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """The answer, as the object that is sent."""
        told: dict[str, Any] = {"elected": self.elected}
        if self.grant is not None:
            told["grant"] = self.grant._asdict()
        if self.over is not None:
            told["over"] = self.over
        if self.failure is not None:
            told["failure"] = self.failure.to_json()
        if self.nothing:
            told |= {"nothing": True, "waits_for": self.waits_for}
        if self.error:
            told["error"] = self.error
        if self.kind is not None:
            told["kind"] = self.kind
        return told

    @classmethod
    def from_json(cls, fields: object) -> TaskTold:
        """Raises `BadInput` for what is no such answer."""
        told = _object("an answer about tasks", fields)
        grant, failure = told.get("grant"), told.get("failure")
        if grant is not None:
            grant = _object("grant", grant)
            grant = _granted("grant", [grant.get(name) for name in Granted._fields])
        over, kind = told.get("over"), told.get("kind")
        if over is not None and over not in get_args(Over):
            raise BadInput(f"over is {short(over)}, not one of {', '.join(get_args(Over))}")
        if kind is not None and kind not in get_args(ErrorKind):
            raise BadInput(f"kind is {short(kind)}, not one of {', '.join(get_args(ErrorKind))}")
        found = cls(
            grant=grant,
            over=over,
            failure=None if failure is None else failure_of(failure),
            nothing=told.get("nothing") is True,
            waits_for=str(told.get("waits_for", "")),
            error=str(told.get("error", "")),
            kind=kind,
            elected=told.get("elected") is True,
        )
        if not (found.grant or found.over or found.nothing or found.error):
            raise BadInput(f"an answer about tasks that says nothing: {short(told)}")
        return found


def failure_of(fields: object) -> Failure:
    """Reads a failure. Raises `BadInput`."""
    failure = _object("failure", fields)
    return Failure(
        namespace=check_namespace(failure.get("namespace")),  # type: ignore[arg-type]  # checked
        n=_whole("failure: n", failure.get("n"), 0, LANES_MAX - 1),
        step=_whole("failure: step", failure.get("step"), 1, STEPS_MAX),
        why=str(failure.get("why", ""))[:WHY_CHARS_MAX],
    )


def _failed(fields: object) -> FailedTask:
    failed = _object("failed", fields)
    task = _granted("failed", [failed.get(name) for name in Granted._fields])
    return FailedTask(task, str(failed.get("why", ""))[:WHY_CHARS_MAX])


def _granted(what: str, value: object) -> Granted:
    if not isinstance(value, list) or len(value) != len(Granted._fields):
        raise BadInput(f"{what} is {short(value)}, not [rank, step, token]")
    rank, step, token = value
    return Granted(
        _whole(f"{what}: rank", rank, 0, LANES_MAX - 1),
        _whole(f"{what}: step", step, 1, STEPS_MAX),
        _whole(f"{what}: token", token, 1, INT64_MAX),
    )


def _object(what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{what} is {short(value)}, not an object")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadInput(f"wait_s is {short(value)}, not a number of seconds from 0")
    return min(float(value), WAIT_MOST_S)


def _whole(what: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{what} is {short(value)}, not a whole number from {least} to {most}")
    return value
