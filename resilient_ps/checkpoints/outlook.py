"""How the checkpoints of a cluster stand, for people: what there is, what failed, what is next."""

from __future__ import annotations

from resilient_ps.checkpoints.planning import newest, pending
from resilient_ps.checkpoints.policy import OLD_INTERVALS, interval
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.fields import JsonObject
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.figures import Figure
from resilient_ps.machine import Effect, Log

FAILURES_TOLD = 2
WARN_AGAIN_NS = 600 * 10**9


def standing(view: ClusterView, settings: CheckpointSettings, wall_s: int) -> JsonObject:
    """The newest good checkpoint, and when the next one is due."""
    record, chosen = newest(view), interval(settings, view)
    age_s = None if record is None else max(0, wall_s - record.created_s)
    due_s = None
    if chosen.seconds:
        due_s = round(max(0.0, chosen.seconds - (age_s or 0)), 3)
    return {
        "checkpoints": sum(each.state == "good" for each in view.checkpoints),
        "damaged": sum(each.state == "damaged" for each in view.checkpoints),
        "newest": None if record is None else record.id,
        "clocks": {} if record is None else record.clocks,
        "age_s": age_s,
        "old": _is_old(age_s, chosen.seconds),
        "interval_s": round(chosen.seconds, 3),
        "interval_by": chosen.chosen,
        "every_clocks": settings.every_clocks,
        "mtbf_h": settings.mtbf_h if settings.auto else None,
        "cost_s": None if chosen.cost_s is None else round(chosen.cost_s, 3),
        "due_s": due_s,
        "waiting": len(pending(view)),
    }


def _is_old(age_s: int | None, interval_s: float) -> bool:
    return age_s is not None and interval_s > 0 and age_s > OLD_INTERVALS * interval_s


def figures(
    view: ClusterView, settings: CheckpointSettings, wall_s: int, failures: int
) -> tuple[Figure, ...]:
    """For a metrics system, as the coordinator knows them."""
    told = standing(view, settings, wall_s)
    found = [
        Figure("resilient_ps_checkpoints", told["checkpoints"], "Good checkpoints"),
        Figure("resilient_ps_checkpoints_damaged", told["damaged"], "Damaged checkpoints"),
        Figure(
            "resilient_ps_checkpoint_failures_in_a_row",
            failures,
            "Attempts that failed since the newest checkpoint",
        ),
        Figure("resilient_ps_checkpoint_interval_seconds", told["interval_s"], "Chosen interval"),
        Figure(
            "resilient_ps_checkpoint_old",
            float(told["old"]),
            "1: the newest good checkpoint is older than three intervals",
        ),
    ]
    if told["age_s"] is not None:
        text = "Age of the newest good checkpoint"
        found.append(Figure("resilient_ps_checkpoint_age_seconds", told["age_s"], text))
    if told["cost_s"] is not None:
        text = "Seconds that the last checkpoints took"
        found.append(Figure("resilient_ps_checkpoint_cost_seconds", told["cost_s"], text))
    return tuple(found)


class Outlook:
    """Failures in a row, and warnings: once when it begins to be bad, then every ten minutes."""

    def __init__(self) -> None:
        self.failures_in_a_row = 0
        self.last_failure = ""
        self._warn_at_ns = 0

    def succeeded(self) -> None:
        """A checkpoint was made."""
        self.failures_in_a_row, self.last_failure, self._warn_at_ns = 0, "", 0

    def failed(self, why: str) -> None:
        """An attempt was given up."""
        self.failures_in_a_row += 1
        self.last_failure = why

    def warnings(
        self, view: ClusterView, settings: CheckpointSettings, wall_s: int, now_ns: int
    ) -> list[Effect]:
        """A warning, if the newest checkpoint is too old and failures are the reason."""
        if not self.failures_in_a_row or now_ns < self._warn_at_ns:
            return []
        record, seconds = newest(view), interval(settings, view).seconds
        age_s = None if record is None else max(0, wall_s - record.created_s)
        if record is not None and not _is_old(age_s, seconds):
            return []
        if record is None and self.failures_in_a_row < FAILURES_TOLD:  # one refusal is usual
            return []
        self._warn_at_ns = now_ns + WARN_AGAIN_NS
        what = {
            "newest": None if record is None else record.id,
            "age_s": age_s,
            "failures": self.failures_in_a_row,
            "why": self.last_failure,
            "remedy": "training goes on; `resilient-ps doctor --store` tells what the store can "
            "do, `resilient-ps status` what is waited for",
        }
        return [Log("warning", "no recent checkpoint", what)]
