"""`--unsafe-disable`: servers without a protection, so that checkers can be seen to notice it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from resilient_ps.errors import BadInput
from resilient_ps.guards import ALLOWED_BY, UNSAFE, without

ScenarioOption = Annotated[
    str,
    typer.Option(
        "--scenario",
        metavar="NAME",
        help=f"Play a fixed scenario instead: {', '.join(UNSAFE)}. Every promise must hold in it.",
    ),
]
HiddenUnsafeOption = Annotated[
    list[str], typer.Option("--unsafe-disable", hidden=True, metavar="NAME[,NAME]")
]
UnsafeOption = Annotated[
    list[str],
    typer.Option(
        "--unsafe-disable",
        metavar="NAME[,NAME]",
        help=f"Take a protection out of the servers ({', '.join(UNSAFE)}) and play what it is "
        f"there for: the run must be found violated. Needs {ALLOWED_BY}=1.",
    ),
]


def disabled(words: Sequence[str]) -> tuple[str, ...]:
    """The names in `words`, each of which may hold several, with commas between them.

    Raises `BadInput` for a name that there is not, and for any where that is not allowed.
    """
    names = tuple(dict.fromkeys(name for word in words for name in word.split(",") if name))
    without(names)
    if names and os.environ.get(ALLOWED_BY) != "1":
        raise BadInput(
            f"--unsafe-disable {','.join(names)}: refused, because such a cluster loses and "
            f"doubles updates; it is there to test the checkers of `resilient-ps chaos`: set "
            f"{ALLOWED_BY}=1 in the environment if that is what you want"
        )
    return names
