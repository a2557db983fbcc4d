"""Gives up what this process does not need: files, other processes, sockets. Linux only.

Landlock leaves a process the files that it is told and takes all others, reading them and writing
anything; where the kernel is new enough also signals to processes outside and the memory and the
environment of those. A filter of system calls takes sockets. Both hold for all threads that begin
later and for all children, and nothing gives them back: call it before a library starts a thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable
from typing import Final

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same number on every architecture
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}
"""Rights over files, as their number, from a version of Landlock on."""
_TCP, _SIGNALS_AND_NAMES = 0b11, 0b11

_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system"),
    *("/dev/null", "/dev/zero", "/dev/urandom"),
)
_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED: Final = {
    # socket, connect, ptrace, process_vm_readv, process_vm_writev
    "x86_64": (41, 42, 101, 310, 311),
    "aarch64": (198, 203, 117, 270, 271),
}
_EVERYWHERE: Final = (425, 438)
"""io_uring_setup, which does without system calls, and pidfd_getfd."""
_X32 = 0x40000000


class CannotConfine(Exception):
    """The system has no such means; the sentence says which."""


def readable(folder: str) -> list[str]:
    """What a Python of this environment reads to import things, and a checkpoint.

    Args:
        folder: of the checkpoint; where its files are links, what they lead to.
    """
    found = [*_SYSTEM, sys.prefix, sys.base_prefix, *sys.path, folder]
    found += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if os.path.isdir(folder):
        found += [os.path.realpath(entry.path) for entry in os.scandir(folder)]
    return [path for path in dict.fromkeys(found) if path.strip("/") and os.path.isabs(path)]


def confine(paths: Iterable[str]) -> None:
    """Keep these files and folders, to be read, and no other file or socket.

    Args:
        paths: absolute; those that are not there are left out.

    Raises:
        CannotConfine: the system does not have it; then some of it may be in force.
    """
    if sys.platform != "linux":
        raise CannotConfine(f"{sys.platform} has neither Landlock nor seccomp")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise CannotConfine("the kernel refuses PR_SET_NO_NEW_PRIVS")
    _refuse_sockets(libc)
    _keep(libc, paths)


def _keep(libc: ctypes.CDLL, paths: Iterable[str]) -> None:
    """Landlock."""
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        raise CannotConfine("the kernel has no Landlock")
    num_rights = max(count for since, count in _RIGHTS.items() if since <= version)
    handled = struct.pack(
        "QQQ",
        (1 << num_rights) - 1,
        _TCP if version >= 4 else 0,
        _SIGNALS_AND_NAMES if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(_CREATE, handled, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise CannotConfine(f"Landlock: {os.strerror(ctypes.get_errno())}")
    try:
        for path in paths:
            _allow(libc, ruleset, path)
        if libc.syscall(_RESTRICT, ruleset, 0):
            raise CannotConfine(f"Landlock: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(opened).st_mode)
        rights = _EXECUTE | _READ_FILE | (_READ_DIR if is_folder else 0)
        rule = struct.pack("=Qi", rights, opened)
        if libc.syscall(_ADD, ruleset, _PATH_BENEATH, rule, 0):
            raise CannotConfine(f"Landlock, {path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(opened)


def _refuse_sockets(libc: ctypes.CDLL) -> None:
    """Seccomp: EPERM for some system calls, for all of another architecture, and for x32's."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise CannotConfine(f"the numbers of system calls on {machine} are not known here")
    load, equal, at_least, done = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1
    refused = (*_REFUSED[machine], *_EVERYWHERE)
    steps = [(load, 0, 0, 4), (equal, 0, len(refused) + 3, _AUDIT_ARCH[machine]), (load, 0, 0, 0)]
    steps.append((at_least, len(refused) + 1, 0, _X32))
    for place, number in enumerate(refused):
        steps.append((equal, len(refused) - place, 0, number))
    steps += [(done, 0, 0, allow), (done, 0, 0, refuse)]
    # From the second step to the last: over the rest of the table and the one that allows.
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0):
        raise CannotConfine(f"seccomp: {os.strerror(ctypes.get_errno())}")
