"""`resilient-ps doctor`: what an object store can do, and what that means for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.text import Text

from resilient_ps.cli.bars import bar
from resilient_ps.cli.exits import EXIT_NEGATIVE, EXIT_WRONG_CALL
from resilient_ps.cli.options import JsonOption, print_json
from resilient_ps.cli.output import grid, remark, results
from resilient_ps.cli.storing import Store, store_options, with_store
from resilient_ps.errors import ResilientPsError
from resilient_ps.storage.runtime.examination import (
    VERDICTS,
    WRITERS,
    Examination,
    Finding,
    Verdict,
    examined,
)
from resilient_ps.storage.runtime.examination_speed import MIB, PARTED_BYTES, SpeedExamination
from resilient_ps.storage.runtime.open import OpenedStore, open_store

EXITS: dict[Verdict, int] = {"good": 0, "limited": EXIT_NEGATIVE, "bad": EXIT_WRONG_CALL}
STYLES: dict[Verdict, str] = {"good": "green", "limited": "yellow", "bad": "bold red"}
SUMMARY: dict[Verdict, str] = {
    "good": "the store can do all that is needed",
    "limited": "the store can be used, with limits: see above",
    "bad": "the store cannot be used: see above",
}
PART_BYTES = 5 * MIB


@with_store()
def doctor(
    *,
    store: Store,
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help=f"Races of {WRITERS} writers, of each kind.")
    ] = 3,
    mib: Annotated[
        int, typer.Option("--mib", min=16, max=16_384, help="MiB to measure the throughput with.")
    ] = 64,
    threads: Annotated[
        int, typer.Option(min=1, max=64, help="That write and read at once, for the throughput.")
    ] = 4,
    json: JsonOption = False,
) -> None:
    """Examine the store that checkpoints are to lie in.

    Conditional writes under racing writers, ranged reads, reads after writes, how far listings lag,
    its clock, objects in parts, and its throughput: what was found, and what it means. Everything
    is written below a name of its own and removed at the end.

    Exit code 0: all is well, 1: usable with limits, 2: it cannot be used (or the credentials or the
    bucket are wrong), 3: it does not answer.

    \b
    Examples:
        resilient-ps doctor --store s3://models/ctr
        resilient-ps doctor --store s3://ctr --s3-endpoint http://10.0.0.5:9000
        resilient-ps doctor --store /mnt/checkpoints --mib 1024
        resilient-ps doctor --store s3://models/ctr --json | jq '.findings[]'
    """
    findings = []
    with ExitStack() as stack:
        blobs = stack.enter_context(closing(_open(store, threads)))
        parted = stack.enter_context(closing(_open_parted(store))) if _has_parts(store) else None
        examination = Examination(blobs, rounds=rounds)
        speed = SpeedExamination(examination, parted, large_mib=mib, threads=threads)
        first, *others = [*examination.steps(), *speed.steps()]
        with _cleaned(examination), bar(first[0], 1 + len(others), "checks") as shown:
            findings.append(first[1]())  # raises where there is no point in going on
            shown()
            for name, act in others:
                shown.say(name)
                findings.append(examined(name, act))
                shown()
    worst = max((each.verdict for each in findings), key=VERDICTS.index)
    if json:
        print_json(_as_json(store.url, worst, findings))
    else:
        _show(store.url, worst, findings)
    if EXITS[worst]:
        raise typer.Exit(EXITS[worst])


def _open(store: Store, threads: int) -> OpenedStore:
    if not store.url:
        store.open()  # says what is missing
    return open_store(store.url, store_options(store, max(threads, WRITERS)))


def _has_parts(store: Store) -> bool:
    return store.url.startswith("s3:")


def _open_parted(store: Store) -> OpenedStore:
    options = replace(
        store_options(store), multipart_bytes=PARTED_BYTES // 2, part_bytes=PART_BYTES
    )
    return open_store(store.url, options)


@contextmanager
def _cleaned(examination: Examination) -> Iterator[None]:
    """What was written is deleted, whatever happens; where that fails, it is said."""
    try:
        yield
    finally:
        try:
            examination.clean_up()
        except ResilientPsError as error:
            remark(f"objects below {examination.folder}/ could not be deleted: {error}")


def _as_json(url: str, worst: Verdict, findings: list[Finding]) -> dict[str, Any]:
    return {"store": url, "verdict": worst, "findings": [asdict(each) for each in findings]}


def _show(url: str, worst: Verdict, findings: list[Finding]) -> None:
    out = results()
    rows = [(each.item, each.verdict, each.found) for each in findings]
    out.print(grid(f"store {url}", ["", "", ""], rows))
    for each in findings:
        if each.means:
            out.print(Text(f"{each.item}: {each.means}", style=STYLES[each.verdict]))
    out.print(Text(SUMMARY[worst], style=STYLES[worst]))
