"""`resilient-ps chaos list`: what can be done to a cluster."""

from __future__ import annotations

import os
import shutil
from typing import Any

from resilient_ps.chaos.faults.kinds import GROUPS, KINDS, Kind, Need
from resilient_ps.cli.chaos.options import has_seaweedfs
from resilient_ps.cli.options import JsonOption, print_json
from resilient_ps.cli.output import grid, results
from resilient_ps.coordinator.runtime.processes import find_etcd

COLUMNS = ("kind", "what it does", "lasts", "needs", "here")


def list_kinds(*, json: JsonOption = False) -> None:
    """Show all kinds of faults by group: what each does, for how long, and what it needs.

    `here` says whether it is possible on this machine. --faults of `chaos run` takes names of kinds
    and of groups.

    \b
    Examples:
        resilient-ps chaos list
        resilient-ps chaos list --json
    """
    missing = {kind.name: sorted(kind.needs - needs_here()) for kind in KINDS.values()}
    if json:
        print_json({"kinds": [_as_json(k, missing[k.name]) for k in KINDS.values()]})
        return
    for group in GROUPS:
        kinds = [kind for kind in KINDS.values() if kind.group == group]
        results().print(grid(group, COLUMNS, [_row(k, missing[k.name]) for k in kinds]))


def needs_here() -> frozenset[Need]:
    """What a cluster that `chaos run` starts on this machine can have."""
    has_etcd, has_store = find_etcd() is not None, has_seaweedfs()
    there: dict[Need, bool] = {
        "network": True,
        "etcd": has_etcd,
        "quorum": has_etcd,
        "s3": has_store,
        "store process": has_store,
        "root": os.geteuid() == 0,
        "faketime": shutil.which("faketime") is not None,
    }
    return frozenset(need for need, is_there in there.items() if is_there)


def _row(kind: Kind, missing: list[Need]) -> list[str]:
    here = "yes" if not missing else f"no: {', '.join(missing)}"
    return [kind.name, kind.text, _lasts(kind), ", ".join(sorted(kind.needs)) or "-", here]


def _lasts(kind: Kind) -> str:
    least, most = kind.lasts_s
    return f"{least:g} to {most:g} {'TTL' if kind.in_ttls else 's'}"


def _as_json(kind: Kind, missing: list[Need]) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "group": kind.group,
        "text": kind.text,
        "targets": list(kind.targets),
        "lasts_least": kind.lasts_s[0],
        "lasts_most": kind.lasts_s[1],
        "lasts_in": "lease times" if kind.in_ttls else "seconds",
        "needs": sorted(kind.needs),
        "missing_here": missing,
    }
