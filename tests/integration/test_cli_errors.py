"""A command that cannot do what it was asked for says so in one line, with the right exit code."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_process import PROGRAM, Shell

import resilient_ps as ps
from resilient_ps.cli import commands, exits

NO_ETCD = ("--etcd", "127.0.0.1:1")
COMMANDS = [
    ("demo",),
    ("local",),
    ("server",),
    ("train",),
    ("status",),
    ("table",),
    ("table", "ls"),
    ("table", "show"),
    ("table", "rm"),
    ("job",),
    ("job", "ls"),
    ("run",),
    ("job", "show"),
    ("job", "stop"),
    ("job", "rm"),
    ("job", "leave"),
    ("server", "drain"),
    ("simulate",),
    ("bench",),
    ("bench", "checkpoint"),
    ("bench", "consistency"),
    ("bench", "platforms"),
    ("checkpoint",),
    *[("checkpoint", name) for name in ("create", "ls", "show", "verify", "diff")],
    *[("checkpoint", name) for name in ("restore", "export", "import", "gc")],
    ("doctor",),
    ("chaos",),
    ("chaos", "bench"),
    ("ns",),
    ("version",),
]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples_in_80_columns(
    shell: Shell, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ended = shell(*command, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert f"\n      resilient-ps {' '.join(command)}" in ended.out
    assert "Example" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_without_a_command_the_help_is_shown(shell: Shell) -> None:
    ended = shell()
    assert ended.code == 2
    assert "resilient-ps demo" in ended.err


def test_the_version_is_printed(shell: Shell) -> None:
    assert shell("version").out == f"{ps.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("servr",), "No such command 'servr'"),
        (("demo", "--nope"), "No such option: --nope (see: resilient-ps demo --help)"),
        (("demo", "--servers", "0"), "'--servers'"),
        (("demo", "--servers", "many"), "'--servers'"),
        (("demo", "--consistency", "bsq"), "consistency 'bsq' is none of: bsp, bsp:mean, ssp"),
        (("demo", "--coordination", "zk"), "'--coordination'"),
        (("demo", "--dataset", "/not/there.svm"), "/not/there.svm"),
        (("train", "forest", "--dataset", "x.svm"), "'MODEL'"),
        (("train", "logistic"), "--dataset"),
        (("train", "logistic", "--dataset", "/not/there.svm", *NO_ETCD), "/not/there.svm"),
        (("train", "logistic", "--dataset", "x", "--rank", "2", "--of", "2"), "--rank 2"),
        (("server", "--listen", "7070"), "--listen '7070' is not HOST:PORT"),
        (("server", "--listen", "127.0.0.1:70707"), "port must be a number from 0 to 65535"),
        (
            ("server", "--listen", "no-such-host.invalid:0"),
            "host 'no-such-host.invalid' is unknown",
        ),
        (("server", "--listen", "127.0.0.1:0", "--cluster", "a/b"), "'a/b' cannot name a cluster"),
        (("server", "--listen", "127.0.0.1:0", "--weight", "-1"), "weight"),
        (("server", "--replicas", "17"), "'--replicas'"),
        (  # told though no etcd answers
            ("server", "--listen", "127.0.0.1:0", "--store", "ftp://x", *NO_ETCD),
            "store 'ftp://x': use s3://bucket/prefix",
        ),
        (
            ("server", "--replicas", "2", "--min-in-sync", "3"),
            "--min-in-sync 3 with --replicas 2: use 1 to 2",
        ),
        (
            ("local", "--servers", "1", "--min-in-sync", "2"),
            "--min-in-sync 2 with --servers 1: use at most 1, or more servers",
        ),
        (("status", "--etcd", "nonsense"), "nonsense"),
        (("job", "leave", "j", "-1"), "-1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_is_one_line_and_exit_code_2(
    shell: Shell, arguments: tuple[str, ...], says: str
) -> None:
    ended = shell(*arguments)
    assert (ended.code, ended.out) == (2, "")
    last = ended.err.splitlines()[-1]
    assert last.startswith("resilient-ps: ")
    assert says in last
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "--deadline", "0.5", *NO_ETCD),
        ("table", "ls", "--deadline", "0.5", *NO_ETCD),
        ("job", "stop", "j", "--deadline", "0.5", *NO_ETCD),
        ("checkpoint", "ls", "--deadline", "0.5", *NO_ETCD),
        ("checkpoint", "create", "--deadline", "0.5", *NO_ETCD),
        ("server", "--listen", "127.0.0.1:0", *NO_ETCD),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_an_absent_etcd_is_exit_code_3(shell: Shell, arguments: tuple[str, ...]) -> None:
    ended = shell(*arguments)
    assert (ended.code, ended.out) == (3, "")
    assert "127.0.0.1:1" in ended.err
    assert "check that etcd runs there" in ended.err
    assert ended.err.count("\n") == 1


def test_a_port_in_use_is_named_with_the_remedy(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = shell("server", "--listen", address)
    assert ended.code == 2
    assert f"cannot listen on {address}" in ended.err
    assert "in use" in ended.err


@pytest.mark.parametrize(
    ("name", "text", "options", "says"),
    [
        ("a.svm", "1 1:2\n1 oops\n", (), "a.svm, line 2: 'oops' is not index:value"),
        ("a.csv", "y,x\n1,2\n0,1,3\n", (), "a.csv, line 3: 3 fields where 2 are expected"),
        ("a.svm", "1 1:2\n", ("--format", "arff"), "unknown format 'arff'"),
        ("a.txt", "1 1:2\n", (), "format of"),
        ("a.svm", "", (), "a.svm"),
        ("a.npz", "not a zip", (), "a.npz"),
        ("a.svm", "1 1:2\n", (), "too few to hold some out"),
    ],
    ids=["bad field", "fields", "format", "no format", "empty", "npz", "too few rows"],
)
def test_a_malformed_file_is_named_with_the_reason(
    shell: Shell, tmp_path: Path, name: str, text: str, options: tuple[str, ...], says: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    ended = shell("demo", "--dataset", str(path), *options)
    assert (ended.code, ended.out) == (2, "")
    assert says in ended.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("softmax",), "softmax needs --classes"),
        (("mlp", "--classes", "2", "--hidden", "wide"), "--hidden 'wide'"),
        (("softmax", "--classes", "2", "--hidden", "3"), "--hidden is not an option of softmax"),
        (("logistic", "--classes", "2"), "--classes is not an option of logistic"),
        (("logistic", "--optimiser", "lion"), "optimiser 'lion' is none of: sum, sgd"),
        (("logistic", "--optimiser", "adam", "--l1", "1"), "--l1 is not an option of the opt"),
        (("logistic", "--optimiser", "sgd", "--lr", "-1"), "lr must be"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_flags_that_do_not_fit_the_model_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    from resilient_ps.cli.plan import Model, TrainPlan

    np.savez(tmp_path / "d.npz", X=np.ones((4, 3)), y=np.zeros(4))
    model, *flags = arguments
    given = {flag[2:]: value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    numbers = {"classes": int, "lr": float, "l1": float}
    typed = {name: numbers.get(name, str)(value) for name, value in given.items()}
    plan = TrainPlan(Model(model), str(tmp_path / "d.npz"), "job", **typed)
    with pytest.raises(ps.BadInput, match=says):
        plan.build_model(plan.open_dataset())


def test_a_plan_survives_the_way_through_its_flags() -> None:
    from resilient_ps.cli.plan import Model, TrainPlan

    plan = TrainPlan(
        Model.LOGISTIC, "a b.csv", "j", consistency="bsp:mean", lr=1e-05, l2=100.0, dense=True,
        label="y", hidden="", epochs=3, seed=0,
    )  # fmt: skip
    words = iter(plan.flags())
    assert next(words) == "logistic"
    again = {}
    for word in words:
        again[word] = True if word == "--dense" else next(words)
    assert again == {
        "--dataset": "a b.csv", "--job": "j", "--consistency": "bsp:mean", "--format": "auto",
        "--batch-size": "1024", "--epochs": "3", "--schedule": "static", "--lr": "1e-05",
        "--l2": "100.0", "--hidden": "", "--label": "y", "--dense": True, "--seed": "0",
    }  # fmt: skip


def test_an_unexpected_exception_is_reported_as_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of a kind that nobody thought of")

    assert exits.run(broken) == 70
    said = capsys.readouterr().err
    assert said.startswith("resilient-ps: bug: please report this")
    assert "ZeroDivisionError: of a kind that nobody thought of" in said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ps.BadInput("x"), 2),
        (ps.DeadlineExceeded("x"), 3),
        (ps.Fenced("x"), 4),
        (ps.Bug("x"), 70),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 0),
        (FileNotFoundError(2, "No such file", "/x"), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_error_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(exits.os, "dup2", lambda *_: None)
    assert exits.run(failing) == code


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    script = f"set -o pipefail; {' '.join(PROGRAM)} train --help | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: resilient-ps train")


def test_the_help_of_every_command_is_tested() -> None:
    assert {command[0] for command in COMMANDS} == set(commands.COMMANDS)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_command_is_known_by_its_name(name: str) -> None:
    app = commands.application_of([name])
    names = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    assert names | {group.name for group in app.registered_groups} == {name}


def test_a_server_loads_no_other_commands() -> None:
    program = (
        "import sys\n"
        "from resilient_ps.cli.main import application\n"
        "application(['server', '--help'], standalone_mode=False)\n"
        "print(*[name for name in sys.modules if name.startswith('resilient_ps.')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "resilient_ps.cli.server" in loaded
    assert not {"resilient_ps.cli.train", "resilient_ps.cli.bench", "resilient_ps.chaos"} & set(
        loaded
    )
