"""Starts child processes: the one place that says what of this process they have.

A child imports nothing from the working folder, which may be a checkpoint's or anybody's: Python is
started with ``-P``, in the folder ``/``. Of the environment it has what is listed here, and so no
key of an operator, no credential and no socket of the service manager. Of the open descriptors it
has those that it is given.
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
"""Where children run: nothing but root can put a file there."""

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
"""Variables that children get: of places, languages, terminals, compilers and hubs of models."""
PREFIXES: Final = tuple(_BEGUN.split())
"""Beginnings of the names of others: of libraries that compute. Not if they sound like secrets."""

_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY")
_OURS = re.compile(r"GATEWAYD_|CREDENTIALS_DIRECTORY$|NOTIFY_SOCKET$|LISTEN_|WATCHDOG_")
"""Settings of the daemon, and what the service manager tells it alone."""

_WORKING_FOLDER = "GATEWAYD_FOLDER"


def is_private(name: str) -> bool:
    """Whether a variable is the daemon's own, and no child's in any case."""
    return _OURS.match(name) is not None


def python(*arguments: str) -> tuple[str, ...]:
    """The command of a Python that takes no module from the working folder."""
    return (sys.executable, "-P", *arguments)


def environment(
    more: Mapping[str, str] | None = None,
    names: Collection[str] = (),
    source: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a child, whole.

    Args:
        more: variables that it gets besides, or with another value.
        names: of further variables to pass on, such as an operator lists.
        source: what they are taken from; None takes this process's environment.
    """
    source = os.environ if source is None else source
    passed = {
        name: value
        for name, value in source.items()
        if not is_private(name) and (name in names or _is_passed(name))
    }
    if more is not None:
        passed |= more
    # An empty or relative entry means the working folder, which is another one there.
    for name, is_kept in (("PATH", os.path.isabs), ("PYTHONPATH", bool)):
        entries = [os.path.abspath(one) for one in passed.pop(name, "").split(":") if is_kept(one)]
        if entries:
            passed[name] = os.pathsep.join(entries)
    passed["PYTHONSAFEPATH"] = "1"  # of the Pythons that it starts
    passed[_WORKING_FOLDER] = working_folder(source)
    return passed


def environment_of_person(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """All that a person's shell has set, less what is the daemon's own.

    For what a person could as well have started: a plugin's own tests, a daemon to be measured.
    """
    source = os.environ if source is None else source
    return {name: value for name, value in source.items() if not is_private(name)}


def working_folder(source: Mapping[str, str] | None = None) -> str:
    """The folder that relative paths of the configuration are meant from.

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
        env: its environment, whole; None takes ``environment()``.
        cwd: its folder.
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
    """A command with its program's path, which does not change with the folder.

    Raises:
        FileNotFoundError: there is no such program.
    """
    program = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", argv[0])
    return [os.path.abspath(program), *argv[1:]]


def _is_passed(name: str) -> bool:
    return name in NAMES or (name.startswith(PREFIXES) and not _SECRET.search(name))
