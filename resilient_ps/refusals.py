"""What a shard's refusal means to the client: the error to raise, with the remedy."""

from __future__ import annotations

from resilient_ps.consistency import JobSpec, Tasks
from resilient_ps.errors import (
    DeadlineExceeded,
    Fenced,
    FixTheCall,
    NotFound,
    NotRepeatable,
    QuotaExceeded,
    Reopen,
    ResilientPsError,
)
from resilient_ps.ids import WorkerId
from resilient_ps.messages import PartAnswer, Status


def refusal(answer: PartAnswer, worker: WorkerId, job: JobSpec | None) -> ResilientPsError:
    """An answer that is not OK, given to this worker, as the error to raise."""
    text = answer.text.decode(errors="replace")
    where = f"shard {answer.shard}"
    me = f"rank {worker.rank}" if job is None else f"rank {worker.rank} of job {job.name!r}"
    match answer.status:
        case Status.FENCED if job is not None and isinstance(job.consistency, Tasks):
            return Fenced(
                f"lane {worker.rank} of graph {job.name!r} was granted to another process (token "
                f"{answer.value}, this one has {worker.incarnation}): drop this task"
            )
        case Status.FENCED:
            return Fenced(
                f"{me} was taken over by another process (incarnation {answer.value}, this one "
                f"is {worker.incarnation}): end this process"
            )
        case Status.DEADLINE:
            return DeadlineExceeded(f"the pull waited until its deadline on {where}: {text}")
        case Status.NOT_REPEATABLE:
            return NotRepeatable(f"{where}: {text}")
        case Status.QUOTA:
            return QuotaExceeded(text)
        case Status.UNKNOWN:
            return NotFound(text)
        case Status.LEFT:
            return Reopen(f"{where}: {text}")
        case _:
            return FixTheCall(f"{where}: {text}")
