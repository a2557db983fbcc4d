"""Starts child processes: the one place that decides what they inherit.

A child imports nothing from the working folder, which may be a checkpoint's or another user's:
Python is started with ``-P``, in the folder ``/``. Its environment is the allowlist here, without
the operator's key, credentials and sockets of the service manager. It inherits only the descriptors
that are passed explicitly.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio.subprocess

FOLDER: Final = "/"
"""Working folder of children: only root can create files there."""

_NAMED = """
PATH HOME USER LOGNAME TMPDIR TEMP TMP XDG_CACHE_HOME LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV
CONDA_PREFIX LANG LANGUAGE TZ TZDIR TERM NO_COLOR FORCE_COLOR JOURNAL_STREAM CC CXX MAX_JOBS
GLIBC_TUNABLES HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE TOKENIZERS_PARALLELISM
"""
_BEGUN = """
LC_ PYTHON MALLOC_ THP_ CUDA NVIDIA_ NCCL_ CUBLAS CUDNN GLOO_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ DNNL_
ONEDNN_ RAYON_ RUST_ TORCH PYTORCH_ TRITON_ FLASHINFER_ HUMMING_ TVM_
"""
NAMES: Final = frozenset(_NAMED.split())
"""Variables that children inherit: for paths, locales, terminals, compilers and model hubs."""
PREFIXES: Final = tuple(_BEGUN.split())
"""Prefixes of further ones, of numerical libraries; names that look like secrets are excluded."""

_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY")
_OURS = re.compile(r"GATEWAYD_|CREDENTIALS_DIRECTORY$|NOTIFY_SOCKET$|LISTEN_|WATCHDOG_")
"""Settings of the daemon, and variables of the service manager for it alone."""

_WORKING_FOLDER = "GATEWAYD_FOLDER"


def is_private(name: str) -> bool:
    """Whether a variable is the daemon's own, and never passed to a child."""
    return _OURS.match(name) is not None


def python(*arguments: str) -> tuple[str, ...]:
    """A Python command line that imports nothing from the working folder."""
    return (sys.executable, "-P", *arguments)


def environment(
    more: Mapping[str, str] | None = None,
    names: Collection[str] = (),
    source: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The complete environment of a child.

    Args:
        more: variables to add or override.
        names: of further variables to pass on, such as those of ``[engine] environment``.
        source: environment to filter; None for that of this process.
    """
    source = os.environ if source is None else source
    passed = {
        name: value
        for name, value in source.items()
        if not is_private(name) and (name in names or _is_passed(name))
    }
    if more is not None:
        passed |= more
    # An empty or relative entry means the working folder, which differs in the child.
    for name, is_kept in (("PATH", os.path.isabs), ("PYTHONPATH", bool)):
        entries = [os.path.abspath(one) for one in passed.pop(name, "").split(":") if is_kept(one)]
        if entries:
            passed[name] = os.pathsep.join(entries)
    passed["PYTHONSAFEPATH"] = "1"  # for Pythons that it starts
    passed[_WORKING_FOLDER] = working_folder(source)
    return passed


def environment_of_person(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user's shell, without the daemon's own variables.

    For programs that the user could have started as well: a plugin's tests, a daemon to benchmark.
    """
    source = os.environ if source is None else source
    return {name: value for name, value in source.items() if not is_private(name)}


def working_folder(source: Mapping[str, str] | None = None) -> str:
    """The folder against which relative paths of the configuration are resolved.

    In a child it is that of the process that started it.
    """
    source = os.environ if source is None else source
    return source.get(_WORKING_FOLDER) or os.getcwd()


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = FOLDER,
    **options: Any,  # noqa: ANN401 - subprocess's
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as ``subprocess.run``.

    Args:
        argv: the command; a program without a folder is looked for in the child's ``PATH``.
        env: its complete environment; None for ``environment()``.
        cwd: its working folder.
        options: of ``subprocess.run``.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: as ``subprocess.run``.
    """
    env = environment() if env is None else env
    return subprocess.run(found(argv, env), env=env, cwd=cwd, **options)


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = FOLDER,
    **options: Any,  # noqa: ANN401 - subprocess's
) -> subprocess.Popen[bytes]:
    """Start a program, as ``subprocess.Popen``; for the rest see ``run``.

    Raises:
        OSError: it cannot be started.
    """
    env = environment() if env is None else env
    return subprocess.Popen(found(argv, env), env=env, cwd=cwd, **options)


async def start_async(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str = FOLDER,
    **options: Any,  # noqa: ANN401 - subprocess's
) -> asyncio.subprocess.Process:
    """Start a program, as ``asyncio.create_subprocess_exec``; for the rest see ``run``.

    Raises:
        OSError: it cannot be started.
    """
    import asyncio

    env = environment() if env is None else env
    return await asyncio.create_subprocess_exec(*found(argv, env), env=env, cwd=cwd, **options)


def found(argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """A command with the program resolved to a path, independent of the working folder.

    Raises:
        FileNotFoundError: there is no such program.
    """
    program = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    return [os.path.abspath(program), *argv[1:]]


def _is_passed(name: str) -> bool:
    return name in NAMES or (name.startswith(PREFIXES) and not _SECRET.search(name))
