"""`resilient-ps table`: the tables of a cluster."""

from __future__ import annotations

import json as json_text
from dataclasses import asdict
from typing import Annotated

import typer

from resilient_ps.cli.options import (
    HELP,
    JsonOption,
    Where,
    YesOption,
    on_cluster,
    print_json,
)
from resilient_ps.cli.output import confirm, grid, opened_catalogue, results, size_text
from resilient_ps.client.connection import connect
from resilient_ps.client.report import TableReport, inspect_cluster
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import NotFound

NameArgument = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table.")]

table = typer.Typer(
    help="""List, show and remove tables.

    \b
    Examples:
        resilient-ps table ls
        resilient-ps table show flights/weights
        resilient-ps table rm flights/weights
    """,
    short_help="List, show and remove tables.",
    no_args_is_help=True,
    **HELP,
)


@table.command("ls")
@on_cluster(deadline_s=2.0)
def ls(
    *,
    where: Where,
    json: JsonOption = False,
) -> None:
    """List the tables: what they hold, and which job writes them.

    \b
    Examples:
        resilient-ps table ls --cluster ctr
        resilient-ps table ls --json | jq -r '.tables[].table'
    """
    tables = _reports(where)
    if json:
        print_json({"tables": [asdict(one) for one in tables]})
        return
    rows = [(t.table, t.kind, f"{t.rows:,}", size_text(t.bytes), t.writer) for t in tables]
    columns = ["table", "kind", "rows", "size", "written by"]
    results().print(grid("tables", columns, rows, right="rows,size"))


@table.command("show")
@on_cluster(deadline_s=2.0)
def show(
    *,
    where: Where,
    name: NameArgument,
    json: JsonOption = False,
) -> None:
    """Show a table's specification and size.

    \b
    Examples:
        resilient-ps table show flights/weights --cluster ctr
        resilient-ps table show flights/weights --json | jq .specification
    """
    reports = {one.table: one for one in _reports(where)}
    with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
        handle = catalogue.table(name)
    if handle is None or name not in reports:
        raise NotFound(f"there is no table {name!r}; tables: {', '.join(reports) or '-'}")
    report = reports[name]
    specification = json_text.loads(handle.spec.to_json())
    if json:
        print_json({**asdict(report), "number": handle.number, "specification": specification})
        return
    rows = [(key, _plain(value)) for key, value in specification.items()]
    rows += [("rows", f"{report.rows:,}"), ("size", size_text(report.bytes))]
    rows += [("shards that answered", report.told), ("written by", report.writer)]
    results().print(grid(f"table {name}", ["", ""], rows))


@table.command("rm")
@on_cluster(deadline_s=10.0)
def rm(
    *,
    where: Where,
    name: NameArgument,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove a table and everything in it. There is no way back.

    \b
    Examples:
        resilient-ps table rm flights/weights --cluster ctr
        resilient-ps table rm old --yes
    """
    with connect(where.etcd, where.cluster, deadline_s=where.deadline_s) as client:
        if client.catalogue.table(name) is None:
            names = ", ".join(client.catalogue.tables()) or "-"
            raise NotFound(f"there is no table {name!r}; tables: {names}")
        confirm(f"remove table {name!r} and everything in it?", yes=yes)
        client.drop_table(name)
    if json:
        print_json({"removed": name})
    else:
        print(f"removed table {name}")


def _reports(where: Where) -> tuple[TableReport, ...]:
    kv = EtcdKv(where.etcd)
    try:
        return inspect_cluster(kv, where.cluster, deadline_s=where.deadline_s).tables
    finally:
        kv.close()


def _plain(value: object) -> object:
    """A nested object as `name(a=1, b=2)`."""
    if not isinstance(value, dict):
        return value
    fields = ", ".join(f"{key}={part}" for key, part in value.items() if key != "name")
    return f"{value.get('name', '')}({fields})"
