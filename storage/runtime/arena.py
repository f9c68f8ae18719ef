"""Memory that two processes share, in slots of one size: objects on their way to or from a store.

A slot is taken, filled by one process and read by the other, and given back. What the operating
system has once given is used again and again, so that an object costs no page faults.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref

import numpy as np

SHARES_MEMORY = hasattr(os, "memfd_create")  # Linux
SLOTS = 24
SLOT_BYTES = 17 << 20  # an object of 16 MiB, and the heads of its chunks


def shared_memory() -> int:
    """A descriptor of memory for all slots, which takes space where it is written."""
    descriptor = os.memfd_create("objects")
    os.ftruncate(descriptor, SLOTS * SLOT_BYTES)
    return descriptor


class Arena:
    """The slots, by number, in this memory; both processes have one of it, and one gives slots out.

    The descriptor may be closed then: memory goes with its last view.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = memoryview(mmap.mmap(descriptor, SLOTS * SLOT_BYTES))
        self._lock = threading.Lock()
        self._free = list(reversed(range(SLOTS)))  # the last one that was given back comes first

    def take(self) -> int:
        """The number of a slot that nobody uses; -1: there is none."""
        with self._lock:
            return self._free.pop() if self._free else -1

    def give(self, slot: int) -> None:
        """Nobody uses it any more."""
        with self._lock:
            self._free.append(slot)

    def view(self, slot: int, nbytes: int) -> memoryview:
        """The beginning of a slot."""
        first = slot * SLOT_BYTES
        return self._memory[first : first + nbytes]

    def lend(self, slot: int, nbytes: int) -> memoryview:
        """As `view`; the slot is given back when neither this nor an array in it is used."""
        array = np.frombuffer(self.view(slot, nbytes), np.uint8)
        weakref.finalize(array, self.give, slot).atexit = False
        return array.data
