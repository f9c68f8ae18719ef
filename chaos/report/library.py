"""What a report is made with and is not ours: Jinja's templates, and plotly.js, which goes into it.

Both come with `pip install "resilient-ps[chaos]"`; nothing else needs them.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from resilient_ps.errors import BadInput

if TYPE_CHECKING:
    from jinja2 import Template

REMEDY = 'install it with: pip install "resilient-ps[chaos]"'


def check_installed() -> None:
    """Before a run of minutes whose report could not be written. Raises `BadInput`."""
    template("page.html")
    drawing_script()


def drawing_script() -> str:
    """The source of plotly.js, for a script element. Raises `BadInput` when it is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise BadInput(f"a report needs plotly, which is not here: {REMEDY}") from None
    source: str = get_plotlyjs()
    return source


def template(name: str) -> Template:
    """One of the templates beside this module: it escapes whatever is put into it.

    Raises `BadInput` when Jinja is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise BadInput(f"a report needs Jinja2, which is not here: {REMEDY}") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(beside(name))


def beside(name: str) -> str:
    """A text file beside this module."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def raw(text: str) -> Any:
    """A text that templates do not escape: our own, or escaped already."""
    from markupsafe import Markup

    return Markup(text)
