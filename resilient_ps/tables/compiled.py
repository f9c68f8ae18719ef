"""How this package compiles its numeric kernels: numba, cached on disk, without the GIL.

Every kernel is compiled with `error_model="numpy"` (a division by zero gives inf, not an
exception) and without `fastmath`: a result is the same bytes as the same formula in numpy, on every
machine. The cache lives beside the module, or in the user's cache folder where that one is not
writable; where neither is, kernels are compiled at every start.

numba's cache looks at the file of the kernel only, not at the files of what the kernel calls.
An upgrade that changed a formula but not its caller would then run the old formula. So the stamp
of every kernel covers all sources of this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import xxhash

Function = TypeVar("Function", bound=Callable[..., Any])


def _stamp_of_sources() -> str:
    digest = xxhash.xxh3_128()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


njit: Any = numba.njit  # its types do not know all of its options
SOURCES_STAMP = _stamp_of_sources()


def kernel(function: Function) -> Function:
    """Compile `function` at its first call and keep the machine code on disk."""
    try:
        dispatcher = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)(
            function
        )
    except RuntimeError:  # numba: "no locator available", no folder is writable
        dispatcher = njit(nogil=True, error_model="numpy")(function)
    else:
        _widen_stamp(dispatcher)
    return cast(Function, dispatcher)


def part(function: Function) -> Function:
    """Compile `function` for calls from kernels only: it is kept with its callers."""
    without_wrappers = njit(
        nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )
    return cast(Function, without_wrappers(function))


def _widen_stamp(dispatcher: Any) -> None:
    # A private attribute of numba: where a later numba has none, only its own rule holds.
    cache_file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = SOURCES_STAMP
