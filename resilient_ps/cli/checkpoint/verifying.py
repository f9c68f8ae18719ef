"""`resilient-ps checkpoint verify`: is all of it there, and as it was written?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.wish import Wish
from resilient_ps.cli.bars import bar
from resilient_ps.cli.checkpoint.choice import NEWEST, WishArgument, choose, opened
from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.options import ClusterOption, JsonOption, print_json
from resilient_ps.cli.output import remark, size_text
from resilient_ps.cli.storing import Store, with_store
from resilient_ps.client.stored import Listed, StoredCheckpoints
from resilient_ps.client.verifying import Verdict, bytes_of
from resilient_ps.client.verifying import verify as verify_all


@with_store()
def verify(
    *,
    cluster: ClusterOption = "default",
    store: Store,
    which: WishArgument = NEWEST,
    every: Annotated[bool, typer.Option("--all", help="All checkpoints of the cluster.")] = False,
    json: JsonOption = False,
) -> None:
    """Read everything that a checkpoint consists of, and compare it with what was written.

    Sizes, SHA-256 of every object and every chunk in it, and whether chunks can be decoded; what is
    damaged is named. Needs no etcd. Exit code 1: something is damaged or missing.

    \b
    Examples:
        resilient-ps checkpoint verify --cluster ctr --store s3://backups/training
        resilient-ps checkpoint verify 1-17-3fa9c2d1 --store ./checkpoints
        resilient-ps checkpoint verify --all --store ./checkpoints --json
    """
    with opened(store, cluster) as stored:
        verdicts = [_verdict(stored, each) for each in _candidates(stored, which, every=every)]
    if json:
        print_json({"cluster": cluster, "checkpoints": [_as_json(each) for each in verdicts]})
    else:
        for verdict in verdicts:
            _say(verdict)
    if not all(verdict.good for verdict in verdicts):
        raise typer.Exit(EXIT_NEGATIVE)


def _candidates(stored: StoredCheckpoints, which: str, *, every: bool) -> list[Listed]:
    if every:
        return _but_incomplete(stored.listed())
    wish = Wish.parse(which)
    if wish.id is not None:  # also one whose manifest is damaged
        return stored.look([wish.id])
    manifest, skipped = choose(stored, which)
    for why in skipped:
        remark(f"passed over: {why}")
    return [Listed(manifest.id, manifest)]


def _but_incomplete(listed: list[Listed]) -> list[Listed]:
    """One that is being made, or never was, is no damaged one."""
    for each in listed:
        if each.state == "incomplete":
            remark(f"passed over: {each.why}")
    return [each for each in listed if each.state != "incomplete"]


def _verdict(stored: StoredCheckpoints, listed: Listed) -> Verdict:
    manifest = listed.manifest
    if manifest is None:
        return Verdict(listed.id, damages=[listed.why])
    with bar(f"verifying {manifest.id}", bytes_of(manifest), "B") as show:
        return verify_all(stored, manifest, show)


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": str(verdict.id),
        "good": verdict.good,
        "objects": verdict.objects,
        "bytes": verdict.nbytes,
        "chunks": verdict.chunks,
        "damages": verdict.damages,
    }


def _say(verdict: Verdict) -> None:
    what = f"{verdict.objects:,} objects, {verdict.chunks:,} chunks, {size_text(verdict.nbytes)}"
    if verdict.good:
        print(f"checkpoint {verdict.id} is good: {what}")
        return
    print(f"checkpoint {verdict.id} is DAMAGED ({what} are as they were written):")
    for damage in verdict.damages:
        print(f"  {damage}")
