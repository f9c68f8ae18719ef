"""`python -m resilient_ps.cli.compiled.generating FILE...`: mypyc makes C of these sources.

Runs in the folder where the package is. Prints, as its last line, the modules that are to be
compiled, as JSON: their names, sources and folders of headers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

OPTIONS = ["--config-file=", "--ignore-missing-imports", "--no-warn-no-return"]


def main() -> None:
    """See the module."""
    from mypyc.build import mypycify

    modules = mypycify(
        [*OPTIONS, *sys.argv[1:]],
        target_dir=str(Path.cwd() / "generated"),
        multi_file=True,
        group_name="simulator",
        log_trace=False,
    )
    found = [
        {
            "name": module.name,
            "sources": [str(Path(each).resolve()) for each in module.sources],
            "folders": [str(Path(each).resolve()) for each in module.include_dirs],
        }
        for module in modules
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
