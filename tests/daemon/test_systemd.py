"""systemd service: one machine's life, in test order.

Run them with ``pytest -m slow tests/daemon/test_systemd.py``, as root.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.daemon.systemd_box import HOME, Box, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "never"),
]
CONFIG = "/etc/gatewayd/gatewayd.toml"
DROP_IN = "/etc/systemd/system/gatewayd.service.d/50-test.conf"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@dataclass
class Machine:
    """The box, and how clients reach the daemon in it: the network is the host's."""

    box: Box
    port: int
    key: str = ""
    said: str = ""

    @property
    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60)

    def complete(self, tokens: int = 8) -> int:
        body = {"model": "nano", "prompt": "import", "max_tokens": tokens, "ignore_eos": True}
        with self.http as http:
            return http.post("/v1/completions", json=body).status_code

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.box.run("systemctl", *words, check=check, seconds=120)

    def journal(self, *options: str) -> list[dict[str, Any]]:
        self.box.run("journalctl", "--sync")
        out = self.box.run("journalctl", "-u", "gatewayd", "-o", "json", "--no-pager", *options)
        return [json.loads(line) for line in out.splitlines()]

    def drop_in(self, text: str) -> None:
        self.box.write(DROP_IN, text)
        self.systemctl("daemon-reload")

    def configure(self, *changes: tuple[str, str]) -> None:
        text = self.box.run("cat", CONFIG)
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.box.write(CONFIG, text + "\n")


class Stream:
    """An answer that is read in the background.

    Attributes:
        text: so far.
        is_complete: whether it came to its proper end.
        error: what the stream said went wrong.
    """

    def __init__(self, machine: Machine, tokens: int) -> None:
        self._machine = machine
        self._tokens = tokens
        self.num_chunks = 0
        self.is_complete = False
        self.error: Any = None
        self._has_begun = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        assert self._has_begun.wait(60)

    def _read(self) -> None:
        body = {
            "model": "nano",
            "prompt": "import",
            "max_tokens": self._tokens,
            "ignore_eos": True,
            "stream": True,
        }
        with (
            self._machine.http as http,
            http.stream("POST", "/v1/completions", json=body) as answer,
        ):
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    self.is_complete = True
                elif line.startswith("data: "):
                    self.error = json.loads(line[6:]).get("error")
                    self.num_chunks += 1
                    self._has_begun.set()

    def join(self) -> None:
        self._thread.join(90)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    box = Box(tmp_path_factory.mktemp("systemd"))
    try:
        yield Machine(box, free_port())
    finally:
        box.stop()


def test_it_is_installed_and_given_a_configuration(machine: Machine) -> None:
    box = machine.box
    said = box.run("gatewayd", "install", "--no-gpu")
    assert "run systemd-sysusers" in said
    assert box.run("id", "-nG", "gatewayd") == "gatewayd"
    machine.said = box.run("gatewayd", "init", "--system", "--port", str(machine.port))
    machine.key = box.run("cat", "/etc/gatewayd/credentials/api-key")
    assert len(machine.key) >= 32
    assert box.run("stat", "-c", "%a %U", "/etc/gatewayd/credentials") == "700 root"
    assert box.run("stat", "-c", "%a %U", "/var/lib/gatewayd") == "700 gatewayd"
    box.run("systemd-analyze", "verify", "gatewayd.service", "gatewayd.socket")


def test_start_waits_until_the_model_serves_and_the_status_says_so(machine: Machine) -> None:
    machine.systemctl("start", "gatewayd")
    assert machine.box.show("ActiveState") == "active"
    assert machine.box.show("StatusText") == "serving nano, 0 running, 0 waiting"
    with machine.http as http:
        assert http.get("/readyz").status_code == 200
    events = [entry["MESSAGE"] for entry in machine.journal()]
    (ready,) = [event for event in events if "ready after" in event]
    assert json.loads(ready)["level"] == "info"
    exposure = machine.box.run("systemd-analyze", "security", "gatewayd.service", "--no-pager")
    (score,) = re.findall(r"exposure level for gatewayd.service: ([\d.]+)", exposure)
    assert float(score) <= 2.0


def test_the_doctor_sees_the_service(machine: Machine) -> None:
    report = json.loads(machine.box.run("gatewayd", "doctor", "--config", CONFIG, "--json"))
    checks = {check["subject"]: check for check in report["checks"]}
    assert "gatewayd.service: exposure 1." in checks["unit"]["text"]
    assert checks["port"]["text"].startswith("a gatewayd answers on")
    assert checks["disk"]["state"] == "ok"


def test_the_key_is_a_credential_and_the_printed_command_works(machine: Machine) -> None:
    command = machine.said[machine.said.index("curl ") :].replace("curl ", "curl -sS -m 60 ", 1)
    answer = json.loads(machine.box.run("bash", "-c", command))
    assert answer["choices"][0]["message"]["content"]
    assert httpx.get(f"http://127.0.0.1:{machine.port}/v1/models").status_code == 401
    # Who may become the service's user cannot read the source, and others nothing at all.
    for path in ("/etc/gatewayd/credentials/api-key", "/run/credentials/gatewayd.service/api-key"):
        machine.box.run("test", "-e", path)
        denied = machine.box.run("setpriv", "--reuid=nobody", "cat", path, check=False)
        assert "Permission denied" in denied
    assert machine.key not in machine.box.run("journalctl", "--no-pager")
    strategies = ("strategies", "--socket", "/run/gatewayd/admin.sock", "--json")
    assert "slots" in json.loads(machine.box.run("gatewayd", *strategies))


def test_a_good_file_is_taken_and_a_bad_one_is_refused(machine: Machine) -> None:
    pid = machine.box.show("MainPID")
    machine.configure(("[admin]", '[log]\nlevel = "debug"\n\n[admin]'))
    machine.systemctl("reload", "gatewayd")
    assert any("log level set to debug" in entry["MESSAGE"] for entry in machine.journal())
    machine.configure(('"debug"', '"loud"'))
    refused = machine.systemctl("reload", "gatewayd", check=False)
    assert "failed" in refused
    assert "was refused" in machine.box.show("StatusText")
    assert "log.level = 'loud'" in machine.box.show("StatusText")
    urgent = [entry["MESSAGE"] for entry in machine.journal("-p", "err")]
    assert any("configuration not reloaded" in message for message in urgent)
    assert not any("log level set to" in message for message in urgent)
    assert machine.complete() == 200
    machine.configure(('"loud"', '"info"'))
    machine.systemctl("reload", "gatewayd")
    assert "was refused" not in machine.box.show("StatusText")
    assert machine.box.show("MainPID") == pid


def test_stop_lets_a_live_stream_finish(machine: Machine) -> None:
    stream = Stream(machine, 500)
    began = time.monotonic()
    machine.systemctl("stop", "gatewayd")
    stopped = time.monotonic() - began
    stream.join()
    assert stream.is_complete
    assert stream.error is None
    assert machine.box.show("Result") == "success"
    assert machine.box.show("ActiveState") == "inactive"
    assert stopped < 32
    events = [entry["MESSAGE"] for entry in machine.journal()]
    assert not any("cancelling" in event for event in events)


def test_stop_cuts_what_does_not_finish_within_the_limit(machine: Machine) -> None:
    machine.configure(("[server]", "[server]\ndrain_seconds = 0.5"))
    machine.systemctl("start", "gatewayd")
    stream = Stream(machine, 2000)
    began = time.monotonic()
    machine.systemctl("stop", "gatewayd")
    assert time.monotonic() - began < 30
    stream.join()
    assert stream.error["code"] == "server_shutdown"
    assert machine.box.show("Result") == "success"
    machine.configure(("\ndrain_seconds = 0.5", ""))


def test_the_socket_starts_the_service(machine: Machine) -> None:
    port = f"[Socket]\nListenStream=\nListenStream=127.0.0.1:{machine.port}\n"
    machine.box.write("/etc/systemd/system/gatewayd.socket.d/port.conf", port)
    machine.systemctl("daemon-reload")
    machine.systemctl("enable", "--now", "gatewayd.socket")
    assert machine.box.show("ActiveState") == "inactive"
    assert machine.complete() == 200  # it waited for all of the start
    assert machine.box.wait("ActiveState", "active")


def test_requests_and_a_stream_are_served_across_a_restart(machine: Machine) -> None:
    pid = machine.box.show("MainPID")
    stream = Stream(machine, 300)
    is_over = threading.Event()

    def ask() -> list[int]:
        statuses = []
        while not is_over.is_set():
            statuses.append(machine.complete())  # on a connection of its own
        return statuses

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        machine.systemctl("restart", "gatewayd")
        time.sleep(0.5)
        is_over.set()
        statuses = [status for each in asking for status in each.result()]
    stream.join()
    assert stream.is_complete
    assert machine.box.show("MainPID") != pid
    assert len(statuses) >= 8  # each before and after
    assert set(statuses) == {200}


def test_a_start_may_take_longer_while_it_is_under_way(machine: Machine) -> None:
    machine.systemctl("stop", "gatewayd.socket", "gatewayd")
    program = f"{HOME}/bin/python {HOME}/source/tests/daemon/fake_daemon.py"
    machine.drop_in(
        "[Service]\nTimeoutStartSec=10\nExecStart=\n"
        f"ExecStart={program} server.port={machine.port}\n"
        f"Environment=LD_LIBRARY_PATH={HOME}/python/lib FAKE_LOAD_MS=14000\n"
    )
    began = time.monotonic()
    machine.systemctl("start", "--no-block", "gatewayd")
    machine.box.wait("StatusText", "loading nano; engine 0 starting: weights 0%")
    machine.box.wait("ActiveState", "active")
    assert time.monotonic() - began > 13
    machine.systemctl("stop", "gatewayd")
    machine.systemctl("start", "gatewayd.socket")


def test_a_hung_daemon_is_ended_by_the_watchdog_and_started_again(machine: Machine) -> None:
    machine.drop_in("[Service]\nWatchdogSec=4\nTimeoutAbortSec=2\n")
    machine.systemctl("restart", "gatewayd")
    time.sleep(6)  # one that is well is left alone
    assert machine.box.show("NRestarts") == "0"
    pid = machine.box.show("MainPID")
    machine.box.run("kill", "-STOP", pid)
    machine.box.wait("NRestarts", "1")
    machine.box.wait("ActiveState", "active")
    assert machine.box.show("MainPID") != pid
    said = machine.box.run("journalctl", "-u", "gatewayd", "--no-pager", "-o", "cat")
    assert "Watchdog timeout (limit 4s)!" in said
    assert machine.complete() == 200
    # Its engine went with it.
    engines = machine.box.run("pgrep", "-fc", "gatewayd_engine --fd")
    assert engines == "1"


def test_an_engine_that_is_killed_is_the_daemons_affair(machine: Machine) -> None:
    pid = machine.box.show("MainPID")
    machine.box.run("pkill", "-KILL", "-f", "gatewayd_engine --fd")
    assert machine.complete() == 200
    assert machine.box.show("MainPID") == pid


def test_a_bad_configuration_is_not_tried_again(machine: Machine) -> None:
    machine.systemctl("stop", "gatewayd.socket", "gatewayd")
    machine.configure(("port = ", "prot = "))
    machine.systemctl("start", "gatewayd", check=False)
    machine.box.wait("ActiveState", "failed")
    assert machine.box.show("ExecMainStatus") == "78"
    assert machine.box.show("NRestarts") == "0"
    assert "did you mean server.port?" in machine.box.show("StatusText")
    said = machine.box.run("journalctl", "-u", "gatewayd", "--no-pager", "-o", "cat")
    assert "did you mean server.port?" in said
    machine.configure(("prot = ", "port = "))


def test_an_instance_runs_beside_it_and_needs_no_credential(machine: Machine) -> None:
    port = free_port()
    machine.box.run("gatewayd", "init", "--instance", "two", "--port", str(port))
    machine.box.run("rm", "/etc/gatewayd/two/credentials/api-key")
    text = machine.box.run("cat", "/etc/gatewayd/two/gatewayd.toml")
    machine.box.write("/etc/gatewayd/two/gatewayd.toml", text.replace("api_key = ", "# api_key = "))
    machine.systemctl("start", "gatewayd@two")
    assert httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    assert machine.box.run("stat", "-c", "%a", "/var/lib/gatewayd-two/gatewayd.db") == "600"
    machine.systemctl("stop", "gatewayd@two")


def test_a_credential_that_is_named_and_missing_is_said(machine: Machine) -> None:
    machine.box.run("rm", "/etc/gatewayd/credentials/api-key")
    machine.systemctl("start", "gatewayd", check=False)
    machine.box.wait("ActiveState", "failed")
    assert machine.box.show("ExecMainStatus") == "78"
    said = machine.box.run("journalctl", "-u", "gatewayd", "--no-pager", "-o", "cat")
    assert "server.api_key: the credential 'api-key':" in said


def test_it_is_taken_out_again(machine: Machine) -> None:
    said = machine.box.run("gatewayd", "install", "--uninstall")
    assert "run systemctl disable --now gatewayd.service gatewayd.socket" in said
    units = machine.systemctl("list-unit-files", "gatewayd*", "--no-legend", check=False)
    assert "gatewayd.service" not in units
    machine.box.run("test", "-e", CONFIG)
