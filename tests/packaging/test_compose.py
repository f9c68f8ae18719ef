"""deploy/compose.yaml keeps to the Compose specification, and to rules of our own."""

from __future__ import annotations

import copy
import importlib.resources
import json
import re
from typing import Any

import check_jsonschema
import jsonschema
import pytest
from compose import FOLDER, load, words

from resilient_ps.cli.exits import run
from resilient_ps.cli.main import application

OFFICIAL = json.loads(
    importlib.resources.files(check_jsonschema)
    .joinpath("builtin_schemas", "vendor", "compose-spec.json")
    .read_text()
)
"""The schema of the Compose specification, as that package brings it along."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return load({})


def test_it_has_the_form_that_compose_takes(compose: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(OFFICIAL).validate(compose)


def test_what_the_specification_does_not_know_is_refused(compose: dict[str, Any]) -> None:
    wrong = copy.deepcopy(compose)
    wrong["services"]["server1"]["comand"] = ["server"]
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.Draft202012Validator(OFFICIAL).validate(wrong)


def test_only_this_machine_reaches_the_ports(compose: dict[str, Any]) -> None:
    ports = [port for s in compose["services"].values() for port in s.get("ports", [])]
    assert ports
    assert all(re.fullmatch(r"127\.0\.0\.1:[0-9]+:[0-9]+", port) for port in ports)


def test_three_members_of_etcd_three_servers_a_store_and_a_job(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert [name for name in services if name.startswith("etcd")] == ["etcd1", "etcd2", "etcd3"]
    assert [n for n in services if n.startswith("server")] == ["server1", "server2", "server3"]
    assert {"minio", "bucket", "train"} <= set(services)


def test_what_a_service_waits_for_exists_and_can_become_so(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            assert other in services, (name, other)
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in services[other], (name, other)
            if wait["condition"] == "service_completed_successfully":
                assert "restart" not in services[other], (name, other)


def test_every_host_that_is_named_is_a_service(compose: dict[str, Any]) -> None:
    known = {*compose["services"], "0.0.0.0", "127.0.0.1"}
    for name, service in compose["services"].items():
        texts = [*words(service.get("command", [])), *service.get("environment", {}).values()]
        for host in re.findall(r"([A-Za-z0-9.-]+):[0-9]{2,5}\b", " ".join(texts)):
            assert host in known, (name, host)


def test_named_volumes_are_declared_and_files_are_there(compose: dict[str, Any]) -> None:
    used = set()
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (FOLDER / source).exists(), source
            else:
                used.add(source)
    assert used == set(compose["volumes"])
    build = compose["services"]["server1"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).is_file()


def test_our_commands_know_every_flag(
    compose: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = {n: s for n, s in compose["services"].items() if s["image"] == "resilient-ps"}
    checked = 0
    for service in ours.values():
        command = words(service.get("command", []))
        if "entrypoint" in service or not command:
            continue
        capsys.readouterr()
        assert run(application, [command[0], "--help"]) == 0
        shown = capsys.readouterr().out
        for flag in [word for word in command if word.startswith("--")]:
            assert re.search(rf"{flag}\b", shown), (command, flag)
            checked += 1
    assert checked > 20


def test_secrets_are_no_part_of_the_image_and_can_be_given(compose: dict[str, Any]) -> None:
    given = load({"STORE_USER": "me", "STORE_PASSWORD": "secret"})
    for name in ("server1", "train", "cli"):
        environment = given["services"][name]["environment"]
        assert environment["AWS_ACCESS_KEY_ID"] == "me"
        assert environment["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert given["services"]["minio"]["environment"]["MINIO_ROOT_PASSWORD"] == "secret"
    dockerfile = (FOLDER / "Dockerfile").read_text()
    assert not re.search(r"SECRET|PASSWORD|KEY", dockerfile)
    assert compose["services"]["server1"]["environment"]["RESILIENT_PS_STORE"].startswith("s3://")
