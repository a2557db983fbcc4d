"""Sandbox: what a confined process can no longer do, tried before and after."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd_engine.process import sandbox
from gatewayd_engine.process.sandbox import readable

_TRIED = """
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
"""
_TRIES = """
import asyncio, ctypes, json, os, resource, signal, socket, subprocess, sys, threading
from gatewayd_engine.process.sandbox import confine, readable
model, secret, admin, datagrams, parent = sys.argv[1:]
said = threading.Event()
def connects():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(admin)
def peeks():
    with open(f"/proc/{parent}/environ", "rb") as file:
        assert file.read()
os.link(secret, secret + "-x")
no = subprocess.DEVNULL
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=no, stderr=no)  # ends with this one
class Attr(ctypes.Structure):  # of sched_setattr: 48 bytes, of which the first four say so
    _fields_ = [("size", ctypes.c_uint32), ("rest", ctypes.c_uint32 * 11)]
NUMBERS = {
    "x86_64": {"sched_setattr": 314, "ioprio_set": 251},
    "aarch64": {"sched_setattr": 274, "ioprio_set": 30},
}[os.uname().machine]
def calls(number, *values):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *values) < 0:
        raise OSError(ctypes.get_errno(), "refused")
TRIES = {
    "prlimit": lambda: resource.prlimit(
        other.pid, resource.RLIMIT_CORE, resource.prlimit(other.pid, resource.RLIMIT_CORE)),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, other.pid, 1),
    "setpriority of all": lambda: os.setpriority(os.PRIO_PGRP, 0, 1),
    "scheduler": lambda: os.sched_setscheduler(other.pid, os.SCHED_BATCH, os.sched_param(0)),
    "scheduling": lambda: os.sched_setparam(other.pid, os.sched_param(0)),
    "attributes of it": lambda: calls(
        NUMBERS["sched_setattr"], other.pid, ctypes.byref(Attr(48)), 0),
    "affinity": lambda: os.sched_setaffinity(other.pid, os.sched_getaffinity(other.pid)),
    "io priority": lambda: calls(NUMBERS["ioprio_set"], 1, other.pid, (2 << 13) | 7),
    "chmod": lambda: os.chmod(secret, 0o644),
    "fchmod": lambda: os.fchmod(opened, 0o644),
    "chown": lambda: os.chown(secret, os.getuid(), os.getgid()),
    "fchown": lambda: os.fchown(opened, os.getuid(), os.getgid()),
    "lchown": lambda: os.lchown(secret, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(secret),
    "utime of an open file": lambda: os.utime(opened),
    "link": lambda: os.link(secret, secret + "-y"),
    "unlink": lambda: os.unlink(secret + "-x") or os.link(secret, secret + "-x"),
    "read": lambda: open(secret).close(),
    "list": lambda: os.listdir(os.path.dirname(secret)),
    "write": lambda: open(secret, "a").close(),
    "make": lambda: os.mkdir(secret + "-made"),
    "rename": lambda: os.rename(secret, secret + "-away") or os.rename(secret + "-away", secret),
    "plant": lambda: open(os.path.join(model, "planted"), "w").close(),
    "connect": connects,
    "connect a pair": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"1", datagrams),
    "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close(),
    "environment": peeks,
    "signal": lambda: os.kill(int(parent), 0),
}
try:
    os.setxattr(secret, "user.a", b"1")
except OSError:  # not every file system has them
    pass
else:
    TRIES["setxattr"] = lambda: os.setxattr(secret, "user.a", b"1")
    TRIES["removexattr"] = lambda: (
        os.removexattr(secret, "user.a") or os.setxattr(secret, "user.a", b"1"))
opened = os.open(os.path.join(model, "plain.json"), os.O_RDONLY)
before = tried()
os.rmdir(secret + "-made")
os.unlink(secret + "-y")
confine(readable(model))
after, threads = tried(), []
thread = threading.Thread(target=lambda: threads.append(tried()))
thread.start()
thread.join()
import tokenizers, numpy  # what is installed can be read, and libraries be loaded
os.nice(1)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.kill(os.getpid(), 0)
asyncio.run(asyncio.sleep(0))  # wakes itself by a pair of streams
kept = [len(open(os.path.join(model, name)).read()) for name in ("plain.json", "linked.json")]
print(json.dumps([before, after, threads[0], kept]))
"""


def has_landlock() -> bool:
    libc = ctypes.CDLL(None)
    return sys.platform == "linux" and int(libc.syscall(444, None, 0, 1)) >= 6  # with scopes


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
def test_files_sockets_and_other_processes_are_out_of_reach(tmp_path: Path) -> None:
    model, store = tmp_path / "cache" / "snapshots" / "1", tmp_path / "store"
    blobs = tmp_path / "cache" / "blobs"
    for folder in (model, store, blobs):
        folder.mkdir(parents=True)
    (store / "secret").write_text("canary")
    (blobs / "blob").write_text("12345")
    (model / "plain.json").write_text("{}")
    (model / "linked.json").symlink_to("../../blobs/blob")
    (model / "tokenizer.model").symlink_to(store / "secret")
    (model / "more").symlink_to(store)
    with (
        socket.socket(socket.AF_UNIX) as admin,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        admin.bind(str(tmp_path / "admin.sock"))
        admin.listen()
        datagrams.bind(str(tmp_path / "log.sock"))
        sockets = [tmp_path / "admin.sock", tmp_path / "log.sock"]
        argv = [model, store / "secret", *sockets, os.getpid()]
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRIED + _TRIES, *map(str, argv)],
            capture_output=True,
            text=True,
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


def test_contents_of_a_cache_may_be_stored_elsewhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    model, other = tmp_path / "models--a--b" / "snapshots" / "1", tmp_path / "other"
    (tmp_path / "models--a--b" / "blobs").mkdir(parents=True)
    model.mkdir(parents=True)
    other.mkdir()
    names = ("ab" * 32, "0" * 40, "ab" * 31, "AB" * 32, "id_" + "a" * 37, "secret")
    for name in names:
        (other / name).touch()
        (model / f"{name}.json").symlink_to(other / name)
    found = set(readable(str(model)))
    assert {Path(path).name for path in found if path.startswith(str(other))} == set(names[:2])
    # Links of a folder that is no snapshot may be those of a malicious checkpoint.
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.json").symlink_to(other / names[0])
    assert str(other / names[0]) not in readable(str(plain))


def test_links_of_a_checkpoint_lead_to_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    model, store = tmp_path / "snapshots" / "1", tmp_path / "store"
    model.mkdir(parents=True)
    store.mkdir()
    (store / "secret").touch(0o644)
    (tmp_path / "blobs").symlink_to(store)
    links = {"a": store / "secret", "b": store, "c": tmp_path, "d": tmp_path / "blobs" / "secret"}
    for name, target in links.items():
        (model / name).symlink_to(target)
    (model / "public").symlink_to("/bin/sh")
    before = set(readable(str(tmp_path / "elsewhere")))
    found = set(readable(str(model))) - before
    assert found == {str(model), os.path.realpath("/bin/sh")}


_OLDER_KERNEL = """
import ctypes, fcntl, json, os, signal, subprocess, sys
from gatewayd_engine.process import sandbox
no = subprocess.DEVNULL
other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=no, stderr=no)
reads, writes = os.pipe()
libc = ctypes.CDLL(None, use_errno=True)
def calls(number, *values):
    if libc.syscall(number, *values) < 0:
        raise OSError(ctypes.get_errno(), "refused")
tkill, tgkill, sends = {"x86_64": (200, 234, 424), "aarch64": (130, 131, 424)}[os.uname().machine]
opened = os.pidfd_open(other.pid)
TRIES = {
    "kill": lambda: os.kill(other.pid, 0),
    "kill of all": lambda: os.kill(0, 0),
    "tkill": lambda: calls(tkill, other.pid, 0),
    "tgkill": lambda: calls(tgkill, other.pid, other.pid, 0),
    "pidfd": lambda: calls(sends, opened, 0, None, 0),
    "owner": lambda: fcntl.fcntl(reads, fcntl.F_SETOWN, other.pid),
    "truncate": lambda: os.truncate(sys.argv[1], 1),
}
before = tried()
libc.prctl(38, 1, 0, 0, 0)
sandbox._filter_calls(libc, 1)
after = tried()
os.kill(os.getpid(), 0)
signal.pthread_kill(__import__("threading").get_ident(), 0)
fcntl.fcntl(reads, fcntl.F_SETFL, os.O_NONBLOCK)
print(json.dumps([before, after]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_kernel_with_an_older_landlock_takes_signals_and_truncation_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    argv = [sys.executable, "-P", "-c", _TRIED + _OLDER_KERNEL, str(tmp_path / "file")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert set(before.values()) == {"done"}
    assert set(after.values()) == {"refused"}


_NO_SECCOMP = """
import sys
from gatewayd_engine.process import sandbox
def none(*_, **__):
    raise sandbox.SandboxUnavailable("no seccomp")
sandbox._filter_calls = none
try:
    sandbox.confine(sandbox.readable("/usr"))
except sandbox.SandboxUnavailable as error:
    print(error)
try:
    open(sys.argv[1])
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(not has_landlock(), reason="this kernel has no Landlock")
def test_a_system_that_lacks_one_means_confines_by_the_other(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    argv = [sys.executable, "-P", "-c", _NO_SECCOMP, str(tmp_path / "file")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout == "no seccomp\nrefused\n", done.stderr


def verdict(code: bytes, arch: int, number: int, *arguments: int) -> str:
    """What a filter does, by an interpreter of the few instructions that it has."""
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    steps, at, held = list(struct.iter_unpack("=HBBI", code)), 0, 0
    while True:
        what, yes, no, k = steps[at]
        at += 1
        if what == 0x06:
            return {0x7FFF0000: "allowed", 0x50001: "refused"}[k]
        if what == 0x20:
            (held,) = struct.unpack_from("=I", data, k)
        else:
            at += yes if {0x15: held == k, 0x35: held >= k}[what] else no


def test_the_filter_of_another_architecture() -> None:
    arm, own = 0xC00000B7, 77
    old, new = (sandbox._program("aarch64", version, own) for version in (1, 6))
    for code in (old, new):
        assert verdict(code, 0xC000003E, 63) == "refused"  # another architecture
        assert {verdict(code, arm, n) for n in (63, 64, 56, 222)} == {"allowed"}
        assert {verdict(code, arm, n) for n in (198, 53, 54, 88, 5, 14, 118, 122)} == {"refused"}
        assert verdict(code, arm, 261, 0, 7) == verdict(code, arm, 140, 0, 0, 5) == "allowed"
        for call in ((261, 9), (140, 0, 9), (140, 1, 0), (140, 2, 0)):
            assert verdict(code, arm, *call) == "refused", call
    for call in ((129, 9), (129, 2**64 - 1), (131, 9), (130, 9), (424, 9), (25, 3, 8), (45, 1)):
        assert (verdict(old, arm, *call), verdict(new, arm, *call)) == ("refused", "allowed"), call
    for call in ((129, own), (131, own, own), (25, 3, 4)):
        assert verdict(old, arm, *call) == verdict(new, arm, *call) == "allowed", call


@pytest.mark.parametrize(
    ("machine", "arch", "opens", "pairs"),
    [("x86_64", 0xC000003E, 41, 53), ("aarch64", 0xC00000B7, 198, 199)],
)
def test_the_network_is_that_of_the_internet(
    machine: str, arch: int, opens: int, pairs: int
) -> None:
    code = sandbox._program(machine, 6, 77, has_network=True)
    none = sandbox._program(machine, 6, 77)
    families = [n for n in range(64) if verdict(code, arch, opens, n, 1) == "allowed"]
    assert families == [2, 10, 16]  # AF_INET, AF_INET6, AF_NETLINK
    assert not [n for n in range(64) if verdict(none, arch, opens, n, 1) == "allowed"]
    # Of Unix sockets a pair of streams, which leads to no other, with SOCK_CLOEXEC and without.
    for kind, found in ((1, "allowed"), (0o2000001, "allowed"), (2, "refused"), (3, "refused")):
        assert verdict(code, arch, pairs, 1, kind) == verdict(none, arch, pairs, 1, kind) == found
    for kind in (0o2000002, 5):
        assert verdict(code, arch, pairs, 1, kind) == "refused"
