"""Daemon secrets: in every place, through a killed engine.

Of the classes of CVE-2024-9606, CVE-2025-0330 and GHSA-69x8-hrgq-fjj8 (keys and digests in logs,
traces and answers), CVE-2025-47277 and CVE-2026-7301 (sockets that nobody asked for) and
CVE-2025-23319 (names of shared memory).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gatewayd.admin.client import AdminError, call
from tests.daemon.conftest import Running

OPERATOR = "operator-canary-5f2c81d09e7b4a36"
MARK = "watermark-canary-93b1e7742fd0"
PROMPT = "prompt-canary-1d7e55c0"
SETTINGS = {
    "GATEWAYD_SERVER__API_KEY": OPERATOR,
    "GATEWAYD_LOG__LEVEL": "debug",
    "GATEWAYD_LOGITS_PROCESSOR__STRATEGIES": '["penalties", "bias", "min_tokens", "watermark"]',
    "GATEWAYD_LOGITS_PROCESSOR__WATERMARK__SECRET": MARK,
    "GATEWAYD_ENGINE__THREADS": "1",
}


@dataclass
class House:
    """A daemon, where it keeps what it keeps, and what its output is.

    Attributes:
        daemon: the process.
        state: its folder.
        admin: its admin socket.
        shared: what stood in shared memory before.
    """

    daemon: Running
    state: Path
    admin: str
    shared: set[str]

    def post(self, key: str, body: Any, path: str = "/v1/completions", **more: Any) -> Any:
        headers = {"authorization": f"Bearer {key}", **more.pop("headers", {})}
        url = f"{self.daemon.url}{path}"
        if isinstance(body, bytes):
            headers["content-type"] = "application/json"
            return httpx.post(url, content=body, headers=headers, timeout=60, **more)
        return httpx.post(url, json=body, headers=headers, timeout=60, **more)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, fresh_store: Path) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    state, log, admin = folder / "state", folder / "log", str(folder / "admin.sock")
    shutil.copytree(fresh_store, state / "gatewayd")
    shared = set(os.listdir("/dev/shm"))
    env = {**os.environ, **SETTINGS, "XDG_STATE_HOME": str(state), "GATEWAYD_ADMIN__SOCKET": admin}
    command = [sys.executable, "-m", "gatewayd", "serve", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        daemon = Running(process, log)
        daemon.wait_ready()
        yield House(daemon, state, admin, shared)
    finally:
        process.kill()
        process.wait()


def inodes(pid: int) -> set[str]:
    """Of a process's sockets."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if opened := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)):
                found.add(opened[1])
    return found


def listening(pids: list[int]) -> set[str]:
    """Addresses on which any of them takes connections, as the kernel writes them."""
    own = set[str]().union(*map(inodes, pids))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        bound = {row[1] for row in rows if row[9] in own and (row[3] == "0A" or "udp" in table)}
        found |= {f"{table} {address}" for address in bound}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        row = line.split()
        if row[6] in own and int(row[3], 16) & 0x10000 and len(row) > 7:
            found.add(f"unix {row[7]}")
    return found


def children(pid: int) -> list[int]:
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(deeper for one in found for deeper in children(one))]


def test_nobody_listens_but_the_port_and_the_admin_socket(house: House) -> None:
    """Engines have the one socket that they were born with: no name, no address, no option."""
    pid = house.daemon.process.pid
    engines = children(pid)
    assert engines
    port = int(house.daemon.url.rpartition(":")[2])
    assert listening([pid, *engines]) == {f"tcp 0100007F:{port:04X}", f"unix {house.admin}"}
    assert Path(house.admin).stat().st_mode & 0o007 == 0
    # Shared memory of ours has no name that anybody could be told.
    ours = {name for name in set(os.listdir("/dev/shm")) - house.shared if "torch" not in name}
    assert not any(str(one) in name for name in ours for one in (pid, *engines))


def used(house: House) -> list[str]:
    """Send secrets wherever something can be sent; the secrets, none of which may be found."""
    call(house.admin, "POST", "/admin/tenants", {"tenant": "acme"})
    made = call(house.admin, "POST", "/admin/keys", {"tenant": "acme"})
    key, gone = made["secret"], call(house.admin, "POST", "/admin/keys", {"tenant": "acme"})
    call(house.admin, "DELETE", f"/admin/keys/{gone['key']}")
    new = call(house.admin, "POST", f"/admin/keys/{made['key']}/rotate", {"overlap_seconds": 600})
    wrong = key[:-12] + "canary-wrong"
    body = {"model": "nano", "prompt": PROMPT, "max_tokens": 4}
    for good in (OPERATOR, key, new["secret"]):
        assert house.post(good, body).status_code == 200
        headers = {"x-request-id": good, "cookie": good, "user-agent": good, "referer": good}
        assert house.post(good, body, headers=headers).status_code == 200
        assert house.post(good, {**body, "user": good, "api_key": good}).status_code == 200
        assert house.post(good, {**body, "model": good}).status_code == 404
        assert house.post(good, {**body, "temperature": good}).status_code == 400
        assert house.post(good, {**body, "logit_bias": {good: 1}}).status_code == 400
        assert house.post(good, f'{{"prompt": "{good}"'.encode()).status_code == 400
        assert house.post(good, body, path=f"/v1/{good}").status_code == 404
        assert house.post(good, body, params={"key": good}).status_code == 200
        with contextlib.suppress(httpx.HTTPError):
            house.post(good, body, headers={"host": f"{good}@x"})
        raw(house, f"GET /{good} HTTP/9.9\r\n{good}: {good}\r\n\r\n")
        raw(house, f"{good} / HTTP/1.1\r\nhost: x\r\n\r\n")
    for bad in (gone["secret"], wrong, "Bearer " + wrong):
        assert house.post(bad, body).status_code == 401
    for settings in ({"secret": MARK, "depth": MARK}, {"secret": [MARK]}):
        chain = {"name": ["watermark"], "settings": {"watermark": settings}}
        with pytest.raises(AdminError) as refused:
            call(house.admin, "PUT", "/admin/strategies/logits_processor", chain)
        assert MARK not in str(refused.value)
    secrets = (key, new["secret"], gone["secret"], wrong)
    return [OPERATOR, MARK, PROMPT, *(secret.split("_", 2)[2] for secret in secrets)]


def raw(house: House, text: str) -> None:
    """What no client would send."""
    port = int(house.daemon.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(text.encode())
        connection.settimeout(30)
        with contextlib.suppress(OSError):
            connection.recv(4096)


def crash(house: House) -> None:
    """Kill the engine under a stream, and wait for the next one."""
    body = {"model": "nano", "prompt": PROMPT, "max_tokens": 1500, "stream": True}
    headers = {"authorization": f"Bearer {OPERATOR}"}
    url = f"{house.daemon.url}/v1/completions"
    begun = {**body, "ignore_eos": True}
    with httpx.stream("POST", url, json=begun, headers=headers, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(children(house.daemon.process.pid)[0], 6)
        assert "error" in "".join(lines)
    deadline = time.monotonic() + 120
    while house.post(OPERATOR, {**body, "stream": False, "max_tokens": 1}).status_code != 200:
        assert time.monotonic() < deadline, house.daemon.log.read_text()[-3000:]


def test_no_secret_and_no_prompt_is_in_what_is_written(house: House) -> None:
    """Logs at debug, metrics, views of the admin, children's environments, files of the store."""
    secrets = used(house)
    crash(house)
    headers = {"authorization": f"Bearer {OPERATOR}"}
    shown = {
        "metrics": httpx.get(f"{house.daemon.url}/metrics", headers=headers).text,
        "readyz": httpx.get(f"{house.daemon.url}/readyz?verbose=1", headers=headers).text,
        **{
            path: str(call(house.admin, "GET", f"/admin/{path}"))
            for path in ("strategies", "requests", "keys", "tenants", "audit", "usage", "snapshot")
        },
    }
    pids = [house.daemon.process.pid, *children(house.daemon.process.pid)]
    shown |= {f"argv of {pid}": Path(f"/proc/{pid}/cmdline").read_text() for pid in pids}
    # The daemon's own has what it was started with; its children have none of it.
    inherited = {pid: Path(f"/proc/{pid}/environ").read_text() for pid in pids[1:]}
    assert inherited
    shown |= {f"environment of {pid}": text for pid, text in inherited.items()}
    assert house.daemon.stop() == 0
    shown["log"] = house.daemon.log.read_text()
    assert "SIGABRT" in shown["log"]
    kept = {file: file.read_bytes() for file in house.state.rglob("*") if file.is_file()}
    assert any(file.name == "gatewayd.db" for file in kept)
    for secret in secrets:
        found = [name for name, text in shown.items() if secret in text]
        found += [str(file) for file, content in kept.items() if secret.encode() in content]
        assert found == [], secret
