"""``gatewayd init``, ``install`` and the doctor on a service's surroundings."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from gatewayd.cli.doctor import checks, service
from gatewayd.cli.doctor.gpu import GpuMachine, judge
from gatewayd.config.load import load
from gatewayd.config.tables import Config, ServerTable, StoreTable
from gatewayd.daemon.systemd.init_config import of_system


def run(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    return subprocess.run(
        [sys.executable, "-m", "gatewayd", *map(str, words)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_init_makes_a_configuration_that_loads_and_keeps_what_is_there(tmp_path: Path) -> None:
    first = run("init", "--port", 8123, HOME=str(tmp_path))
    assert first.returncode == 0, first.stderr
    folder = tmp_path / ".config" / "gatewayd"
    key = folder / "credentials" / "api-key"
    assert oct(key.stat().st_mode)[-3:] == "600"
    assert oct(key.parent.stat().st_mode)[-3:] == "700"
    config = load(folder / "gatewayd.toml", environ={}).config
    assert config.server.port == 8123
    assert config.server.api_key is not None
    assert config.server.api_key.get_secret_value() == key.read_text().strip()
    assert len(key.read_text()) > 40
    assert config.store.path == str(tmp_path / ".local/state/gatewayd")
    assert oct(Path(config.store.path).stat().st_mode)[-3:] == "700"
    assert key.read_text().strip() not in first.stdout
    again = run("init", HOME=str(tmp_path))
    made = [line.split()[0] for line in again.stdout.splitlines() if str(tmp_path) in line][:5]
    assert made == ["kept"] * 5
    assert "8123" in again.stdout  # the curl is that of the file that is there


def test_init_ends_with_a_command_that_asks(tmp_path: Path) -> None:
    asked: list[tuple[str, str | None, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        file = tmp_path / "a folder" / "g.toml"
        words = ("--config", file, "--state", tmp_path / "state", "--port", server.server_port)
        done = run("init", *words, HOME=str(tmp_path))
        curl = done.stdout[done.stdout.index("curl ") :]
        subprocess.run(["bash", "-c", curl], check=True, timeout=30, capture_output=True)
    key = (file.parent / "credentials" / "api-key").read_text().strip()
    ((path, authorization, body),) = asked
    assert path == "/v1/chat/completions"
    assert authorization == f"Bearer {key}"
    assert body["model"] == "nano"


def test_init_says_what_it_cannot_make(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("init", "--state", tmp_path / "file" / "x", HOME=str(tmp_path))
    assert done.returncode == 1
    assert f"cannot create {tmp_path}/file/x: Not a directory" in done.stderr
    assert run("init", "--instance", "../x", HOME=str(tmp_path)).returncode == 2


def test_init_makes_what_the_services_user_reads_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert run("init", HOME=str(tmp_path)).returncode == 0
    finally:
        os.umask(before)
    folder = tmp_path / ".config" / "gatewayd"
    modes = [oct(p.stat().st_mode)[-3:] for p in (folder, folder / "gatewayd.toml")]
    assert modes == ["755", "644"]


def test_the_system_is_where_the_units_look() -> None:
    units = Path(__file__).parents[3] / "systemd"
    for instance, unit in ((None, "gatewayd.service"), ("%i", "gatewayd@.service")):
        text, place = (units / unit).read_text(), of_system(instance)
        assert f"serve --config {place.config}\n" in text
        assert f"LoadCredential=api-key:{place.key}\n" in text
        assert f"StateDirectory={place.state.name}\n" in text
        assert f"RuntimeDirectory={place.admin.parent.name}\n" in text


def test_install_below_a_root_says_what_it_writes_and_takes_it_out_again(tmp_path: Path) -> None:
    done = run("install", "--root", tmp_path, "--no-gpu")
    assert done.returncode == 0, done.stderr
    written = re.findall(r"^write (.*)$", done.stdout, re.MULTILINE)
    assert sorted(written) == sorted(str(p) for p in tmp_path.rglob("*") if p.is_file())
    assert len(written) == 5
    assert "run " not in done.stdout  # this machine's systemd is not touched
    assert run("install", "--root", tmp_path, "--uninstall").returncode == 0
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# The doctor


A100 = ("NVIDIA A100, 81920 MiB, 550.54",)


@pytest.mark.parametrize(
    ("device", "machine", "state", "words"),
    [
        ("cpu", GpuMachine((), "", ""), "ok", "no NVIDIA GPU; engines run on the CPU"),
        ("cpu", GpuMachine(A100, "550.54", ""), "warning", "not used: torch is built for CPUs"),
        ("cpu", GpuMachine(A100, "550.54", "12.8"), "ok", "A100"),
        ("cuda", GpuMachine((), "", "12.8"), "failure", "the NVIDIA driver is not loaded"),
        ("cuda", GpuMachine(A100, "550.54", ""), "failure", "torch is built for CPUs"),
        ("cuda:1", GpuMachine(A100, "550.54", "12.8"), "failure", "device is cuda:1, and there is"),
        ("cuda", GpuMachine(A100, "550.54", "13.0"), "failure", "CUDA 13.0 needs 580 or later"),
        ("cuda", GpuMachine(A100, "470.1", "12.8"), "failure", "driver 470.1; torch for CUDA 12.8"),
    ],
)
def test_the_doctor_judges_gpu_and_driver(
    device: str, machine: GpuMachine, state: str, words: str
) -> None:
    found = judge(device, machine)
    assert found.state == state
    assert words in found.text


def _config(**store: object) -> Config:
    return Config(store=StoreTable.model_validate(store))


def test_the_doctor_looks_at_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "not" / "yet")
    assert service.disk(_config(path=folder)).state == "ok"
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(9, 9, 1 << 20))
    found = service.disk(_config(path=folder))
    assert (found.state, "writes are refused" in found.text) == ("failure", True)
    (tmp_path / "file").write_text("")
    assert service.disk(_config(path=str(tmp_path / "file"))).state == "failure"


def test_the_doctor_knows_a_service_that_is_too_exposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    assert service.unit(Config()).state == "ok"
    bare = tmp_path / "bare.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    found = service._judge(str(bare), "bare:")
    assert found.state == "warning"
    assert "above 2.0" in found.text


def test_the_doctor_tells_a_gatewayd_on_the_port_from_a_stranger() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(answers.pop(0))

        def log_message(self, *_: object) -> None:
            pass

    answers = [b'{"status": "not_ready"}', b"hello"]
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        config = Config(server=ServerTable(port=server.server_port))
        for state in ("ok", "failure"):
            threading.Thread(target=server.handle_request, daemon=True).start()
            assert checks.port(config).state == state


def test_the_doctor_counts_what_the_daemon_may_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, hard, state in ((1024, 4096, "ok"), (1024, 1024, "warning"), (9999, 9999, "ok")):
        monkeypatch.setattr(resource, "getrlimit", lambda _, both=(soft, hard): both)
        assert checks.descriptors(Config()).state == state
