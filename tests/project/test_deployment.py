"""The unit for systemd and the recipe of the container."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from dedupindex.cli.serve import command
from tests.conftest import MakeIndex, need
from tests.integration.test_operation import certificate
from tests.integration.test_server_live import DEADLINE, serving, until
from tests.support.captures import capture
from tests.support.paths import ROOT

UNIT = ROOT / "conf" / "systemd" / "dedupindex.service"
IMAGE = ROOT / "conf" / "container" / "Containerfile"
OPTIONS = {name for option in command.params for name in option.opts}


def analyse(*words: str) -> str:
    need("systemd-analyze", found=shutil.which("systemd-analyze") is not None)
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text()
    program = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert program
    unit.write_text(text.replace(program[1], sys.executable))  # it looks whether there is one
    assert unit.name not in analyse("verify", str(unit))


def test_the_systemd_unit_is_restricted() -> None:
    found = re.search(r"exposure level for \S+: ([\d.]+)", analyse(
        "security", "--offline=yes", str(UNIT)))  # fmt: skip
    assert found and float(found[1]) <= 1.5


def test_the_unit_starts_the_server_with_options_that_it_has() -> None:
    text = UNIT.read_text()
    line = re.search(r"^ExecStart=(.*)", text, re.MULTILINE)
    assert line and line[1].split()[1] == "serve"
    assert {word for word in line[1].split() if word.startswith("--")} <= OPTIONS | {"--config"}
    assert f"ReadWritePaths={line[1].split()[-1].rpartition('/')[0]}\n" in text


def test_systemd_is_notified_of_start_and_end(make_index: MakeIndex, tmp_path: Path) -> None:
    index, heard = make_index([capture(1)]), tmp_path / "notify"
    words = [sys.executable, "-m", "dedupindex", "serve", str(index), "--port", "0", "--json"]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(heard))
        listener.settimeout(DEADLINE)
        with subprocess.Popen(
            words,
            env={**os.environ, "NOTIFY_SOCKET": str(heard)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert listener.recv(1000) == b"READY=1"
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["url"].removeprefix("http://")
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), DEADLINE).close()
            process.send_signal(signal.SIGTERM)
            assert listener.recv(1000) == b"STOPPING=1"
            assert process.wait(DEADLINE) == 0


def test_the_image_is_complete_and_runs_without_root() -> None:
    text = re.sub(r"\\\n", " ", IMAGE.read_text())
    steps = [line.split(None, 1) for line in text.splitlines() if line and line[0] not in "# "]
    for name, given in steps:
        if name == "COPY":
            for source in given.split()[:-1]:
                assert (ROOT / source).exists(), source
    last = {name: given for name, given in steps}
    assert last["USER"] == "10001:10001"
    assert [name for name, _ in steps].index("USER") > max(
        place for place, (name, _) in enumerate(steps) if name in ("RUN", "COPY")
    )
    started = json.loads(last["CMD"])
    assert started[0] == "serve" and {w for w in started if w.startswith("--")} <= OPTIONS
    default = next(option.default for option in command.params if option.name == "port")
    assert last["EXPOSE"] == str(default) and f":{default}/readyz" in last["HEALTHCHECK"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert json.loads(last["ENTRYPOINT"]) == list(project["scripts"])
    (base,) = (given for name, given in steps if name == "FROM")
    version = re.search(r"python:([\d.]+)-slim$", base)
    assert version
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]


def test_the_services_of_compose_find_each_other(make_index: MakeIndex) -> None:
    services = yaml.safe_load((IMAGE.parent / "compose.yaml").read_text())["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (IMAGE.parent / source).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert (IMAGE.parent / services["dedupindex"]["build"]["context"]).resolve() == ROOT
    settings = yaml.safe_load((ROOT / "conf" / "prometheus" / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert services[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    alerts = [*map((ROOT / "conf" / "prometheus").joinpath, settings["rule_files"])]
    assert f'job="{job["job_name"]}"' in alerts[0].read_text()
    provided = ROOT / "conf" / "grafana" / "provisioning"
    sources, folders = (
        yaml.safe_load((provided / kind / "dedupindex.yaml").read_text())[key][0]
        for kind, key in (("datasources", "datasources"), ("dashboards", "providers"))
    )
    assert sources["url"].removeprefix("http://").split(":")[0] in services
    place = f":{folders['options']['path']}/dedupindex.json:"
    assert any(place in volume for volume in services["grafana"]["volumes"])
    serve, _, *options = services[name]["command"]
    assert serve == "serve"
    with serving(make_index([capture(1)]), *options, "--workers", "1") as server:
        status, body = server.get("/metrics", Host=target)
        assert status == 200 and b"dedupindex_ready 1" in body


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_image_is_healthy_while_its_server_is_ready(
    tls: bool, make_index: MakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = re.sub(r"\\\n", " ", IMAGE.read_text())
    (given,) = re.findall(r"^HEALTHCHECK .*?CMD\s+(\[.*\])$", text, re.MULTILINE)
    place = re.findall(r"^WORKDIR (\S+)", text, re.MULTILINE)[0]
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which is not asked

    def healthy(port: int) -> bool:
        asked = given.replace(place, str(ROOT)).replace(":8484/", f":{port}/")
        _, *words = json.loads(asked)
        done = subprocess.run([sys.executable, *words], timeout=DEADLINE)
        return done.returncode == 0

    options = []
    if tls:
        cert, key = certificate(tmp_path, "elsewhere.example")
        options = ["--tls-cert", str(cert), "--tls-key", str(key)]
    index = make_index([capture(1)])
    with serving(index, "--workers", "1", *options) as server:
        assert healthy(server.port)
        if not tls:
            index.rename(tmp_path / "away")
            assert until(lambda: server.get("/readyz")[0] == 503)
            assert not healthy(server.port)
    assert not healthy(server.port)
