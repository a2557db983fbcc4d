"""What a confined process cannot do any more, tried by one that can do all of it before."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd_engine.confinement import readable

_TRIES = """
import ctypes, json, os, socket, sys, threading
from gatewayd_engine.confinement import confine, readable
model, secret, admin, parent = sys.argv[1:]
said = threading.Event()
def connects():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(admin)
def peeks():
    with open(f"/proc/{parent}/environ", "rb") as file:
        assert file.read()
TRIES = {
    "read": lambda: open(secret).close(),
    "list": lambda: os.listdir(os.path.dirname(secret)),
    "write": lambda: open(secret, "a").close(),
    "make": lambda: os.mkdir(secret + "-made"),
    "rename": lambda: os.rename(secret, secret + "-away") or os.rename(secret + "-away", secret),
    "plant": lambda: open(os.path.join(model, "planted"), "w").close(),
    "connect": connects,
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "environment": peeks,
    "signal": lambda: os.kill(int(parent), 0),
}
def tried():
    found = {}
    for name, attempt in TRIES.items():
        try:
            attempt()
        except PermissionError:
            found[name] = "refused"
        except OSError as error:
            found[name] = str(error)
        else:
            found[name] = "done"
    return found
before = tried()
os.rmdir(secret + "-made")
confine(readable(model))
after, threads = tried(), []
thread = threading.Thread(target=lambda: threads.append(tried()))
thread.start()
thread.join()
import tokenizers, numpy  # what is installed can be read, and libraries be loaded
kept = [len(open(os.path.join(model, name)).read()) for name in ("plain.json", "linked.json")]
print(json.dumps([before, after, threads[0], kept]))
"""


def has_landlock() -> bool:
    libc = ctypes.CDLL(None)
    return sys.platform == "linux" and int(libc.syscall(444, None, 0, 1)) >= 6  # with scopes


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
def test_files_sockets_and_other_processes_are_out_of_reach(tmp_path: Path) -> None:
    model, store = tmp_path / "model", tmp_path / "store"
    model.mkdir()
    store.mkdir()
    (store / "secret").write_text("canary")
    (tmp_path / "blob").write_text("12345")
    (model / "plain.json").write_text("{}")
    (model / "linked.json").symlink_to(tmp_path / "blob")
    with socket.socket(socket.AF_UNIX) as admin:
        admin.bind(str(tmp_path / "admin.sock"))
        admin.listen()
        argv = [model, store / "secret", tmp_path / "admin.sock", os.getpid()]
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRIES, *map(str, argv)], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    before, after, in_a_thread, kept = json.loads(done.stdout)
    assert set(before.values()) == {"done"}
    assert after == in_a_thread == dict.fromkeys(before, "refused")
    assert kept == [2, 5]
    assert (store / "secret").read_text() == "canary"


def test_a_checkpoint_is_read_and_the_root_is_not(tmp_path: Path) -> None:
    found = readable(str(tmp_path))
    assert str(tmp_path) in found
    assert not {"/", "", ".", str(Path.home()), "/etc", "/var", "/run", "/tmp"} & set(found)
