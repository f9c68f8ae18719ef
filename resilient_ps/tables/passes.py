"""The passes over tables, from the engine that is in use: see `kernels` for what each does.

numba is imported only where it is used: that takes longer than to start the rest of a server.
"""

from __future__ import annotations

from typing import Any

from resilient_ps.engine import native


def _numba() -> Any:
    from resilient_ps.tables import kernels

    return kernels


_engine: Any = _numba() if native is None else native

LOADS_BYTES = native is not None
"""Does `load_rows` take the bytes of rows, too, wherever they stand?"""

push_rows = _engine.push_rows
load_rows = _engine.load_rows
pull_rows = _engine.pull_rows
rehash = _engine.rehash
forget_stamps = _engine.forget_stamps
row_numbers = _engine.row_numbers
claim_rows = _engine.claim_rows
survey_rows = _engine.survey_rows
push_blocks = _engine.push_blocks
fill_rows = _engine.fill_rows
