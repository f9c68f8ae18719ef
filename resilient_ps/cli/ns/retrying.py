"""`resilient-ps ns retry`: a failed graph of tasks goes on."""

from __future__ import annotations

from resilient_ps.cli.ns.arguments import GraphArgument, opened
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.client.graph_report import retry as clear


@on_cluster(deadline_s=10.0)
def retry(
    *,
    where: Where,
    name: GraphArgument,
    json: JsonOption = False,
) -> None:
    """Let a graph whose task failed go on: the task is granted again, to whoever asks first.

    Do it when the cause is gone (`ns watch` shows it), and holders of tasks are running, or will.

    \b
    Examples:
        resilient-ps ns retry nightly --cluster ctr
        resilient-ps ns retry nightly && resilient-ps ns watch nightly
    """
    with opened(where) as (kv, keys):
        failure = clear(kv, keys, name, where.deadline_s)
    if json:
        print_json({"retried": name, "failure": failure})
    else:
        print(f"graph {name} goes on; what had failed: {failure}")
