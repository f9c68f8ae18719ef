"""`resilient-ps ns set`: a namespace's quota."""

from __future__ import annotations

from typing import Annotated

import typer

from resilient_ps.cli.ns.arguments import NamespaceArgument
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.cli.output import opened_catalogue
from resilient_ps.client.scopes import quota_text
from resilient_ps.errors import BadInput


@on_cluster(deadline_s=30.0)
def set_quota(
    *,
    where: Where,
    path: NamespaceArgument,
    rows_max: Annotated[
        int | None, typer.Option("--rows-max", min=0, help="Rows of sparse tables.")
    ] = None,
    bytes_max: Annotated[
        int | None, typer.Option("--bytes-max", min=0, help="Bytes with the optimisers' state.")
    ] = None,
    unbounded: Annotated[bool, typer.Option("--no-quota", help="Take the quota away.")] = False,
    json: JsonOption = False,
) -> None:
    """Give a namespace a quota, in place of the one that it has.

    It bounds what all tables in the namespace and in inner ones hold together, on all shards; the
    quotas of outer namespaces count, too. Both options together are the quota: one that is left
    away is no bound. When this command returns, all shards know it. A quota below what is used is
    possible: then nothing can be created until there is less.

    \b
    Examples:
        resilient-ps ns set ctr/emb --rows-max 10000000 --cluster ctr
        resilient-ps ns set ctr --rows-max 50000000 --bytes-max 20000000000
        resilient-ps ns set ctr/emb --no-quota
    """
    if unbounded == (rows_max is not None or bytes_max is not None):
        raise BadInput("give --rows-max, --bytes-max or both; or --no-quota alone")
    with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
        record = catalogue.scopes.set(path, rows_max, bytes_max)
    if json:
        print_json({"namespace": path, "rows_max": record.rows_max, "bytes_max": record.bytes_max})
    else:
        print(f"namespace {path}: {quota_text(record)}, in force on all shards")
