"""Which engine works on arrays and bytes: the native module, or numba and Python.

The native module is compiled when the package is installed; without a compiler it is left out, and
numba does the same work: the same bytes, slower. `RESILIENT_PS_KERNELS=numba` in the environment
takes numba in any case, `=native` refuses to run without the native module.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypeAlias

from resilient_ps.errors import BadInput

Engine: TypeAlias = Literal["native", "numba"]

VARIABLE = "RESILIENT_PS_KERNELS"


def _load() -> Any:
    """The native module, or None where it is not to be used."""
    # How a process computes is settled when its modules are loaded, before there are settings.
    wanted = os.environ.get(VARIABLE, "")  # noqa: TID251
    if wanted not in ("", "native", "numba"):
        raise BadInput(f"{VARIABLE}={wanted!r}: use native or numba, or unset it")
    if wanted == "numba":
        return None
    try:
        from resilient_ps import _native
    except ImportError as error:
        if wanted == "native":
            raise BadInput(
                f"{VARIABLE}=native, but the native module is missing ({error}): install a C++ "
                "compiler, then install resilient-ps again"
            ) from error
        return None
    return _native


native: Any = _load()
"""The native module (see its stub), or None."""

ENGINE: Engine = "numba" if native is None else "native"
