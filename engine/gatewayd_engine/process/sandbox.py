"""Sandbox of this process: drops access to files, other processes and sockets. Linux only.

Landlock leaves read access to the listed files, write access to the listed folders, and denies all
other reads and writes; with a recent kernel also signals to processes outside of the sandbox, and
their memory and environment. A seccomp filter denies sockets, or all but those of the internet,
changes of files that cannot be opened (modes, times, attributes), limits and priorities of other
processes, and what Landlock of an older kernel does not cover. Both apply to threads and children
that start later and are irrevocable: call it before a library starts a thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
import sys
from collections.abc import Iterable
from functools import partial
from typing import Final, NamedTuple

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same number on every architecture
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file access rights, by the Landlock ABI version that introduced them."""
_WRITE = sum(1 << bit for bit in (1, 2, 3, 4, 5, 7, 8, 12, 13, 14))
"""Reading, writing, making and removing files, folders and symbolic links; no devices, sockets."""
_BIND, _TCP, _SIGNALS_AND_NAMES = 0b01, 0b11, 0b11

_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/sys/devices/system"),
    *("/dev/null", "/dev/zero", "/dev/urandom"),
)
_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_REFUSED: Final = {
    "x86_64": (
        *(101, 310, 311),  # ptrace, process_vm_readv, process_vm_writev
        *(142, 144, 203, 314, 251),  # sched_set{param,scheduler,affinity,attr}, ioprio_set
        *(90, 91, 268, 92, 93, 94, 260),  # chmod, fchmod, fchmodat, chown, fchown, lchown, fchownat
        *(132, 235, 261, 280),  # utime, utimes, futimesat, utimensat
        *(188, 189, 190, 197, 198, 199),  # setxattr, removexattr, with l and f before
        *(256, 279),  # migrate_pages, move_pages
    ),
    "aarch64": (
        *(117, 270, 271),
        *(118, 119, 122, 274, 30),
        *(52, 53, 54, 55),  # fchmod, fchmodat, fchownat, fchown
        88,  # utimensat
        *(5, 6, 7, 14, 15, 16),
        *(238, 239),
    ),
}
_SOCKETS: Final = {"x86_64": (41, 42), "aarch64": (198, 203)}
"""socket, connect."""
_NETWORK: Final = (2, 10, 16)
"""AF_INET, AF_INET6, and AF_NETLINK, by which resolvers ask for this machine's addresses."""
_SOCKETPAIR: Final = {"x86_64": 53, "aarch64": 199}
_STREAMS: Final = (0o1, 0o4001, 0o2000001, 0o2004001)
"""SOCK_STREAM, with SOCK_NONBLOCK, SOCK_CLOEXEC or both.

Other pairs are refused: datagrams can be sent from one to any Unix socket, without ``connect``.
"""
_EVERYWHERE: Final = (425, 438, 452, 463, 466, 469)
"""io_uring_setup, which bypasses seccomp, pidfd_getfd, fchmodat2, setxattrat,
removexattrat, file_setattr."""
_ON_ITSELF: Final = {
    # prlimit64; setpriority of a process (not a group or user), and which
    "x86_64": ((302, (0,)), (141, (0, 0))),
    "aarch64": ((261, (0,)), (140, (0, 0))),
}
"""Allowed only with these first arguments."""
_SIGNALS: Final = {
    # kill, tgkill, rt_tgsigqueueinfo; tkill, rt_sigqueueinfo; fcntl
    "x86_64": ((62, 234, 297), (200, 129), 72),
    "aarch64": ((129, 131, 240), (130, 138), 25),
}
_PIDFD_SEND_SIGNAL: Final = 424
_F_SETOWN, _F_SETOWN_EX = 8, 15
_TRUNCATE: Final = {"x86_64": 76, "aarch64": 45}
_SIGNALS_SINCE, _TRUNCATE_SINCE = 6, 3
"""Landlock ABI versions that deny these."""
_X32 = 0x40000000
_DIGESTS = (40, 64)
"""Hexadecimal digits of a content's name in a Hugging Face cache: git's, SHA-256's or Xet's."""


class _Argument(NamedTuple):
    """A condition on an argument of a system call: values with which it is allowed, or denied."""

    place: int
    values: tuple[int, ...]
    is_allowed: bool


class SandboxUnavailable(Exception):
    """The system lacks a sandboxing mechanism; the message says which."""


class SandboxFailed(Exception):
    """The system supports the mechanism, but applying it failed; the message says why."""


def installation() -> list[str]:
    """Return the paths that Python needs for imports in this environment."""
    found = [*_SYSTEM, sys.prefix, sys.base_prefix, *sys.path]
    found += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    # The empty entry of ``sys.path`` is the working folder.
    return _allowed(found)


def readable(folder: str) -> list[str]:
    """Return the paths of ``installation``, and a checkpoint's.

    Args:
        folder: of the checkpoint. Targets of symbolic links in it are included only if they are
            contents of a Hugging Face cache, or world-readable: a malicious checkpoint may link to
            any file of this user.
    """
    found = [*installation(), folder]
    if os.path.isdir(folder):
        snapshot = os.path.realpath(folder)
        targets = [os.path.realpath(entry.path) for entry in os.scandir(folder)]
        found += [
            path
            for path in targets
            if os.path.isfile(path) and (_is_content(path, snapshot) or _is_public(path))
        ]
    return _allowed(found)


def _allowed(paths: Iterable[str]) -> list[str]:
    """Leave out relative paths and ``/``: a rule for that would allow everything."""
    return [path for path in dict.fromkeys(paths) if path.strip("/") and os.path.isabs(path)]


def _is_content(path: str, folder: str) -> bool:
    """Whether a file is a content of the Hugging Face cache that contains a snapshot's folder.

    It is in ``MODEL/blobs``, or has a content's name and is elsewhere, as with tools that share
    contents between models, stores or users.
    """
    blobs = _blobs_of(folder)
    return blobs is not None and (os.path.dirname(path) == blobs or has_content_name(path))


def has_content_name(path: str) -> bool:
    """Whether a file is named by a digest, as a cache's contents are, and secrets are not."""
    name = os.path.basename(path)
    return len(name) in _DIGESTS and set(name) <= set("0123456789abcdef")


def _blobs_of(folder: str) -> str | None:
    """Return the blob folder of a Hugging Face cache, for ``MODEL/snapshots/REVISION``."""
    snapshots = os.path.dirname(folder)
    if os.path.basename(snapshots) != "snapshots":
        return None
    return os.path.join(os.path.dirname(snapshots), "blobs")


def _is_public(path: str) -> bool:
    """Whether a file is world-readable, and all its parent folders are world-searchable."""
    if not os.stat(path).st_mode & stat.S_IROTH:
        return False
    while (folder := os.path.dirname(path)) != path:
        path = folder
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
    return True


def confine(
    paths: Iterable[str], *, writable: Iterable[str] = (), has_network: bool = False
) -> None:
    """Restrict this process to reading these files and folders, without sockets.

    Args:
        paths: absolute; missing ones and ``/`` are skipped.
        writable: folders that may also be changed; missing ones are skipped.
        has_network: whether it may connect to other machines. So it may to ports of this one, by
            its loopback address too; its Unix sockets, such as the daemon's for administration,
            are denied all the same.

    Raises:
        SandboxUnavailable: the system lacks a mechanism; the others are in force.
        SandboxFailed: the system supports a mechanism, but applying it failed.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(f"{sys.platform} has neither Landlock nor seccomp")
    libc = ctypes.CDLL(None, use_errno=True)
    # Both mechanisms require it of unprivileged processes.
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise SandboxUnavailable("the kernel refuses PR_SET_NO_NEW_PRIVS")
    version = libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    lacks = []
    for apply in (
        partial(_filter_calls, libc, version, has_network=has_network),
        partial(_restrict_files, libc, version, _allowed(paths), writable, has_network=has_network),
    ):
        try:
            apply()
        except SandboxUnavailable as error:  # still apply the other one
            lacks.append(str(error))
    if lacks:
        raise SandboxUnavailable(", and ".join(lacks))


def _restrict_files(
    libc: ctypes.CDLL,
    version: int,
    paths: Iterable[str],
    writable: Iterable[str],
    *,
    has_network: bool,
) -> None:
    """Restrict file access with Landlock rules."""
    if version < 1:
        raise SandboxUnavailable("the kernel has no Landlock")
    # Each version adds the next bits. A right that is handled and not granted by a rule is denied.
    num_rights = max(count for since, count in _RIGHTS.items() if since <= version)
    files = (1 << num_rights) - 1
    network = _BIND if has_network else _TCP
    handled = struct.pack(
        "QQQ",
        files,
        network if version >= 4 else 0,
        _SIGNALS_AND_NAMES if version >= 6 else 0,
    )
    # Fields were added to the struct: network rights by version 4, scopes by version 6.
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = libc.syscall(_CREATE, handled, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise _failed("Landlock")
    try:
        for path in paths:
            _allow(libc, ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(libc, ruleset, path, files & _WRITE)
        if libc.syscall(_RESTRICT, ruleset, 0):
            raise _failed("Landlock")
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        # Rules for files must not include rights of folders.
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= _EXECUTE | _READ_FILE
        rule = struct.pack("=Qi", rights, opened)
        if libc.syscall(_ADD, ruleset, _PATH_BENEATH, rule, 0):
            raise _failed(f"Landlock, {path}")
    finally:
        os.close(opened)


def _filter_calls(libc: ctypes.CDLL, landlock: int, *, has_network: bool = False) -> None:
    """Install the seccomp filter: EPERM for denied calls, foreign architectures and x32."""
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise SandboxUnavailable(f"the system call numbers of {machine} are not known")
    # A kernel that supports filters fails to read this one, at address 0.
    libc.prctl(_PR_SET_SECCOMP, 2, None, 0, 0)
    if ctypes.get_errno() != errno.EFAULT:
        raise SandboxUnavailable("the kernel has no seccomp filters")
    code = _program(machine, landlock, os.getpid(), has_network=has_network)
    # Referenced until the call has returned: the address alone does not keep it alive.
    held = ctypes.create_string_buffer(code)
    # ``struct sock_fprog``: number of instructions and their address, with native padding.
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    if libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0):
        raise _failed("seccomp")


def _failed(what: str) -> SandboxFailed:
    return SandboxFailed(f"{what}: {os.strerror(ctypes.get_errno())}")


def _program(machine: str, landlock: int, pid: int, *, has_network: bool = False) -> bytes:
    """Build the BPF program; it compares the low half of arguments, as the kernel does for int."""
    refused = [*_REFUSED[machine], *_EVERYWHERE]
    judged = [
        (number, [_Argument(place, (value,), True) for place, value in enumerate(values)])
        for number, values in _ON_ITSELF[machine]
    ]
    judged.append((_SOCKETPAIR[machine], [_Argument(1, _STREAMS, True)]))
    if has_network:
        judged.append((_SOCKETS[machine][0], [_Argument(0, _NETWORK, True)]))
    else:
        refused += _SOCKETS[machine]
    if landlock < _SIGNALS_SINCE:
        to_a_process, to_any, fcntl = _SIGNALS[machine]
        refused += [*to_any, _PIDFD_SEND_SIGNAL]
        judged += [(number, [_Argument(0, (pid,), True)]) for number in to_a_process]
        judged.append((fcntl, [_Argument(1, (_F_SETOWN, _F_SETOWN_EX), False)]))
    if landlock < _TRUNCATE_SINCE:
        refused.append(_TRUNCATE[machine])
    load, equal, at_least, done = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1
    # Opcode, jumps if true and if false (relative, None for the last instruction), and operand.
    steps: list[tuple[int, int | None, int | None, int]] = [
        # ``struct seccomp_data``: call number at 0, architecture at 4, 64-bit arguments from 16 on.
        (load, 0, 0, 4),
        (equal, 0, None, _AUDIT_ARCH[machine]),
        (load, 0, 0, 0),
        # x32 calls have numbers of their own, which the list does not contain.
        (at_least, None, 0, _X32),
        *((equal, None, 0, number) for number in refused),
    ]
    for number, arguments in judged:
        looks: list[tuple[int, int | None, int | None, int]] = []
        for place, values, is_allowed in arguments:
            looks.append((load, 0, 0, 16 + 8 * place))
            end = len(values) - 1
            for at, value in enumerate(values):
                if is_allowed:  # A match skips the others; the mismatch with all is refused.
                    looks.append((equal, end - at, 0 if at < end else None, value))
                else:
                    looks.append((equal, None, 0, value))
        looks.append((done, 0, 0, allow))
        # Of another call, skip the checks of these arguments.
        steps += [(equal, 0, len(looks), number), *looks]
    steps += [(done, 0, 0, allow), (done, 0, 0, refuse)]
    # None becomes a jump to the last instruction, the refusal.
    last = len(steps) - 1
    return b"".join(
        struct.pack("=HBBI", what, *(last - at - 1 if to is None else to for to in (yes, no)), k)
        for at, (what, yes, no, k) in enumerate(steps)
    )


def main() -> int:
    """Confine this process as a trial: 0 if it worked, 1 if it failed, 2 if one is missing."""
    try:
        confine(readable(sys.argv[1]))
    except (SandboxFailed, OSError) as error:
        print(error)
        return 1
    except SandboxUnavailable as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
