"""Which checkpoint a command is about: in a store, chosen by what the caller wishes for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from resilient_ps.checkpoints.wish import HOW, Wish
from resilient_ps.cli.storing import Store
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.errors import NotFound
from resilient_ps.storage.manifest import Manifest

NamespaceOption = Annotated[
    str,
    typer.Option(
        "--namespace",
        help="Only tables in this namespace, as in ctr/emb, and in inner ones.",
        show_default=False,
    ),
]
WishArgument = Annotated[str, typer.Argument(metavar="CHECKPOINT", help=f"Which one: {HOW}.")]
NEWEST = "latest"


@contextmanager
def opened(store: Store, cluster: str) -> Iterator[StoredCheckpoints]:
    """The checkpoints of a cluster in the store."""
    with StoredCheckpoints(store.open(), cluster) as stored:
        yield stored


def choose(stored: StoredCheckpoints, text: str) -> tuple[Manifest, list[str]]:
    """The newest checkpoint that will do, and why newer ones were passed over.

    Only manifests are read. Raises `NotFound`, naming what there is.
    """
    wish = Wish.parse(text)
    if wish.id is not None:
        return stored.manifest(wish.id), []
    skipped: list[str] = []
    for checkpoint in stored.ids():
        (listed,) = stored.look([checkpoint])
        if listed.manifest is None:
            skipped.append(listed.why)
            continue
        manifest = listed.manifest
        if wish.accepts(checkpoint, manifest.clocks, manifest.created_s):
            return manifest, skipped
    if not stored.ids():
        raise NotFound(f"there is no checkpoint: {stored.nothing()}")
    more = f" ({'; '.join(skipped)})" if skipped else ""
    raise NotFound(f"no checkpoint is {wish}{more}: `resilient-ps checkpoint ls` shows them")


def clocks_text(clocks: Mapping[str, int]) -> str:
    """`ctr 120, other 7`. Jobs without a clock (they had ended, or not begun) are left out."""
    return ", ".join(f"{job} {clock}" for job, clock in sorted(clocks.items()) if clock) or "-"


def age_text(created_s: int) -> str:
    """How long ago: `12 s`, `4 min`, `3.5 h`, `2.1 d`."""
    seconds = max(0.0, time.time() - created_s)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} d"


def moment_text(created_s: int) -> str:
    """A time in UTC: `2026-07-01 23:30:00 UTC`."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(created_s))
