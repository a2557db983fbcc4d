"""Machine code of kernels: compiled once per processor and version, kept on disk, loaded here.

A later start loads an object file in a millisecond and neither imports the builder nor compiles.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from gatewayd_engine.kernels.llvm.processor import Processor
from gatewayd_engine.process.file_writes import replace_file

_log = logging.getLogger(__name__)
_KERNELS = Path(__file__).resolve().parents[1]
_SOURCES = ("llvm", "cpu")
"""Packages of ``kernels`` that the code depends on."""


class Library:
    """Machine code of an object file, loaded into this process for as long as it lives."""

    def __init__(self, code: bytes) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Return the address of a function.

        Raises:
            LookupError: there is none of this name.
        """
        address: int = self._engine.get_function_address(name)
        if not address:
            raise LookupError(name)
        return address

    def function(self, name: str, num_arguments: int) -> Callable[..., None]:
        """Return a function of int64 arguments, addresses included; a call releases the GIL."""
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments)
        return kind(self.address(name))


def load_or_compile(
    processor: Processor, what: Sequence[object], compile_code: Callable[[], bytes]
) -> Library:
    """Load machine code from the cache, or compile it and store it there.

    Args:
        processor: of this machine.
        what: identifies the code, with the sources of the kernels, which are hashed.
        compile_code: returns an object file.
    """
    path = _cache_path(processor, what)
    found = None if path is None else _read(path)
    if found is not None:
        return Library(found)
    code = compile_code()
    if path is not None:
        _store(path, hashlib.sha256(code).digest() + code)
    return Library(code)


def _read(path: Path) -> bytes | None:
    """Return the machine code of a file; None if there is none, or none to be trusted."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            content = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("cannot read compiled kernels: %s", error)
        return None
    # It is executed: another user must not have written it.
    if os.name == "posix" and (state.st_uid != os.geteuid() or state.st_mode & 0o022):
        _log.warning("%s belongs to, or can be written by, other users; it is not used", path)
        return None
    digest, code = content[:32], content[32:]
    if hashlib.sha256(code).digest() != digest:
        _log.warning("compiled kernels in %s are damaged; they are compiled again", path)
        return None
    return code


def _store(path: Path, content: bytes) -> None:
    """Write a file as a whole: another engine may start at the same time."""
    try:
        replace_file(path, content)
    except OSError as error:
        # A read-only home costs a second at each start, and nothing else.
        _log.info("compiled kernels are not kept: %s", error)


def _cache_path(processor: Processor, what: Sequence[object]) -> Path | None:
    """Return the file of some code; None if the user has no home."""
    import llvmlite

    key = repr((sources_digest(), llvmlite.__version__, processor, *what))
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(root) / "gatewayd" / "kernels" / f"{name}.o"


@cache
def sources_digest() -> str:
    """Return a digest of the kernels' sources: other sources, other code, perhaps other bits."""
    digest = hashlib.sha256()
    for package in _SOURCES:
        for path in sorted((_KERNELS / package).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
