"""What the README shows is what works."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from resilient_ps.cli.commands import COMMANDS, application_of

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("[")


def test_the_test_that_it_shows_is_one_that_is_run() -> None:
    (shown,) = re.findall(r"```py\n(.*?)```", README, re.DOTALL)
    assert shown in (Path(__file__).parents[2] / "examples" / "test_my_model.py").read_text()


def test_every_command_and_flag_that_it_names_exists() -> None:
    commands = re.findall(r"^ +resilient-ps (.*)$", README, re.MULTILINE)
    assert len(commands) >= 3
    app = application_of(COMMANDS)
    for command in commands:
        words = shlex.split(command)
        named = itertools.takewhile(lambda word: not word.startswith("-"), words)
        shown = CliRunner().invoke(app, [*named, "--help"])
        assert shown.exit_code == 0, shown.output
        for flag in [word for word in words if word.startswith("--")]:
            assert flag in shown.output, (command, flag)
