"""Brings the faults of a schedule about, each in a thread of its own, and heals them."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.live.onlooker import Active
from resilient_ps.chaos.live.scene import Fault, Scene, Skipped
from resilient_ps.errors import ResilientPsError

HEAL_DEADLINE_S = 150.0
ABANDON_DEADLINE_S = 20.0
TEXT_CHARS = 400

Make = Callable[[Planned, Scene], Fault]


@dataclass(eq=False, slots=True)
class _Performed:
    """A planned fault and what has come of it so far."""

    planned: Planned
    struck: Struck
    fault: Fault | None = None
    thread: threading.Thread | None = None
    is_active: bool = False


class Injection:
    """`schedule`: in the order of time; `zero_s`: the moment that its times count from."""

    def __init__(
        self, scene: Scene, schedule: Sequence[Planned], zero_s: float, make: Make
    ) -> None:
        self._scene = scene
        self._zero_s = zero_s
        self._make = make
        self._healing = threading.Event()
        self._lock = threading.Lock()
        self._news: list[str] = []
        self._all = [_Performed(planned, Struck(planned)) for planned in schedule]
        self._next = 0
        self.problems: list[str] = []
        """What went wrong in faults themselves: then the run proves nothing."""

    def launch_due(self) -> None:
        """Begin what it is time for."""
        while self._next < len(self._all) and self._all[self._next].planned.at_s <= self._now_s():
            one = self._all[self._next]
            self._next += 1
            one.thread = threading.Thread(target=self._perform, args=(one,), daemon=True)
            one.thread.start()

    def begin_healing(self) -> None:
        """Let all faults end now, and begin none any more."""
        self._healing.set()

    @property
    def healed(self) -> bool:
        """Has every fault that was begun come to its end?"""
        return not any(one.thread is not None and one.thread.is_alive() for one in self._all)

    def heal(self, deadline_s: float = HEAL_DEADLINE_S) -> bool:
        """As `begin_healing`, and wait. False when a fault has not come to its end."""
        self.begin_healing()
        until_s = time.monotonic() + deadline_s
        threads = [(one, one.thread) for one in self._all if one.thread is not None]
        for _, thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        stuck = [str(one.planned) for one, thread in threads if thread.is_alive()]
        self.problems += [f"the fault does not end: {each}" for each in stuck]
        return not stuck

    @property
    def over(self) -> bool:
        """Has all been brought about and healed?"""
        return self._next == len(self._all) and self.healed

    @property
    def all_injected_s(self) -> float | None:
        """When the last fault of all was brought about; None before that."""
        with self._lock:
            if self._next < len(self._all):
                return None
            pending = [o for o in self._all if not o.struck.injected_s and not o.struck.skipped]
            return None if pending else max((o.struck.injected_s for o in self._all), default=0.0)

    def active(self) -> tuple[Active, ...]:
        """What is under way, in the order of its beginning."""
        with self._lock:
            found = [
                Active(one.planned, one.fault.struck, one.struck.injected_s)
                for one in self._all
                if one.is_active and one.fault is not None
            ]
        return tuple(sorted(found, key=lambda each: each.since_s))

    def progress(self) -> tuple[int, int]:
        """How many faults were brought about, of how many."""
        with self._lock:
            done = sum(bool(one.struck.injected_s) for one in self._all)
        return done, len(self._all)

    def results(self) -> tuple[Struck, ...]:
        """What has come of each, by number. A fault that never began was skipped."""
        with self._lock:
            return tuple(
                one.struck
                if one.thread is not None
                else replace(one.struck, skipped="the run was over")
                for one in self._all
            )

    def news(self) -> list[str]:
        """What has happened since it was asked last."""
        with self._lock:
            news, self._news = self._news, []
        return news

    # -- in the thread of a fault

    def _perform(self, one: _Performed) -> None:
        try:
            self._bring_about(one)
        except Exception as error:  # the harness itself is at fault
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            self._fail(one, text)

    def _bring_about(self, one: _Performed) -> None:
        planned = one.planned
        fault = one.fault = self._make(planned, self._scene)
        try:
            if self._healing.is_set():
                raise Skipped("the run was over")
            began_s = self._now_s()
            self._note(one, replace(one.struck, injected_s=began_s), f"+ {_told(planned)}")
            one.is_active = True
            fault.inject()
            self._note(one, Struck(planned, fault.struck, began_s), "")
            self._healing.wait(planned.lasts_s)  # from now on: some take long to be brought about
        except Skipped as why:
            skipped = Struck(planned, skipped=str(why) or "there is nobody to strike")
            self._note(one, skipped, f"  {planned.kind} skipped: {why}")
        except ResilientPsError as error:
            text = f"it could not be brought about: {str(error)[:TEXT_CHARS]}"
            self._note(one, Struck(planned, skipped=text), f"  {planned.kind}: {text}")
        finally:
            self._end(one, fault)

    def _end(self, one: _Performed, fault: Fault) -> None:
        try:
            fault.heal()
        except ResilientPsError as error:
            self._fail(one, f"it could not be healed: {str(error)[:TEXT_CHARS]}")
        finally:
            one.is_active = False
        if one.struck.skipped:
            return
        ended = replace(
            one.struck,
            struck=fault.struck,
            healed_s=self._now_s(),
            evidence=fault.evidence()[:TEXT_CHARS],
        )
        whom = f" {', '.join(ended.struck)}" if ended.struck else ""
        known = ended.evidence or "without evidence"
        self._note(one, ended, f"- {one.planned.kind}{whom}: {known}")

    def _fail(self, one: _Performed, text: str) -> None:
        with self._lock:
            self.problems.append(f"fault {one.planned.kind}: {text}")
            self._news.append(f"  {one.planned.kind}: {text}")
            one.is_active = False
            if not one.struck.healed_s and not one.struck.skipped:
                struck = one.fault.struck if one.fault is not None else ()
                one.struck = replace(one.struck, struck=struck, healed_s=self._now_s())

    def _note(self, one: _Performed, struck: Struck, text: str) -> None:
        with self._lock:
            one.struck = struck
            if text:
                self._news.append(f"{self._now_s():6.1f} s {text}")

    def _now_s(self) -> float:
        return round(time.monotonic() - self._zero_s, 3)


def _told(planned: Planned) -> str:
    target = f" {' -> '.join(planned.target)}" if planned.target else ""
    return f"{planned.kind}{target} for {planned.lasts_s:.1f} s"
