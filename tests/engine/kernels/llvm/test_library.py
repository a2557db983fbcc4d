"""Compiled code on disk: loaded instead of compiled, unless anything differs or is damaged."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gatewayd_engine.kernels.llvm import library
from gatewayd_engine.kernels.llvm.builder import I64, KernelFunction, new_module
from gatewayd_engine.kernels.llvm.compiler import to_object
from gatewayd_engine.kernels.llvm.library import Library, load_or_compile
from gatewayd_engine.kernels.llvm.processor import Processor, host
from tests.engine.kernels.forked import Child


class Code:
    """Code of a function that writes a number; counts its compilations."""

    def __init__(self, number: int = 42) -> None:
        found = host()
        if found is None:
            pytest.skip("no compiled kernels for this processor")
        self.processor: Processor = found
        self.number = number
        self.compiled = 0

    def compile(self) -> bytes:
        self.compiled += 1
        module = new_module("answer")
        f = KernelFunction(module, "answer", [[I64]], is_exported=True)
        f.arguments[0][0] = self.number
        f.finish()
        return to_object(module, self.processor)

    def answer(self, *what: object) -> int:
        """Load or compile the code, and call it."""
        loaded = load_or_compile(self.processor, what or ("answer",), self.compile)
        out = np.zeros(1, np.int64)
        loaded.function("answer", 1)(out.ctypes.data)
        return int(out[0])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of compiled code, of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gatewayd" / "kernels"


def only_file(home: Path) -> Path:
    (path,) = home.iterdir()
    return path


def test_a_second_load_does_not_compile(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = Code()
    assert [code.answer() for _ in range(3)] == [42, 42, 42]
    assert code.compiled == 1
    assert only_file(home).suffix == ".o"
    assert not caplog.records


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:32],
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: _flip(content, 5),
        lambda content: _flip(content, 32),
        lambda content: _flip(content, len(content) - 1),
    ],
)
def test_a_damaged_file_is_compiled_again(
    home: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    code = Code()
    code.answer()
    path = only_file(home)
    content = path.read_bytes()
    path.write_bytes(damage(content))
    assert code.answer() == 42
    assert code.compiled == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"compiled kernels in {path} are damaged; they are compiled again"
    )
    assert code.answer() == 42
    assert code.compiled == 2
    assert len(path.read_bytes()) == len(content)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_other_users_can_write_is_not_used(
    home: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    code = Code()
    code.answer()
    only_file(home).chmod(mode)
    assert code.answer() == 42
    assert code.compiled == 2
    assert "can be written by, other users" in caplog.text
    assert code.answer() == 42
    assert code.compiled == 2


def test_a_file_of_another_user_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = Code()
    code.answer()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert code.answer() == 42
    assert code.compiled == 2
    assert "belongs to" in caplog.text


def test_a_file_in_place_of_the_folder_does_not_matter(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.parent.write_text("not a folder")
    code = Code()
    assert [code.answer(), code.answer()] == [42, 42]
    assert code.compiled == 2
    assert "cannot read compiled kernels" in caplog.text


def test_a_folder_that_cannot_be_written_does_not_matter(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    # Not by permissions: a superuser has all of them.
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    caplog.set_level(logging.INFO)
    code = Code()
    assert [code.answer(), code.answer()] == [42, 42]
    assert code.compiled == 2
    assert [record.levelno for record in caplog.records] == [logging.INFO] * 2
    assert "read-only file system" in caplog.text


def test_nothing_is_left_of_a_file_that_cannot_be_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    assert Code().answer() == 42
    assert not list(home.iterdir())


def test_a_home_that_is_unknown_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    code = Code()
    assert library._cache_path(code.processor, ("answer",)) is None
    assert code.answer() == 42


def test_the_home_of_the_user_is_used_unless_another_folder_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert Code().answer() == 42
        assert only_file(tmp_path / ".cache/gatewayd/kernels").suffix == ".o"


def test_other_code_has_another_file(home: Path) -> None:
    first, second = Code(1), Code(2)
    assert first.answer("matmul", "bf16") == 1
    assert second.answer("matmul", "f16") == 2
    assert first.answer("matmul", "bf16") == 1
    assert (first.compiled, second.compiled) == (1, 1)


def test_another_processor_has_another_file(home: Path) -> None:
    code, other = Code(1), Code(2)
    other.processor = replace(other.processor, registers=other.processor.registers + 1)
    assert [code.answer(), other.answer(), code.answer()] == [1, 2, 1]
    assert (code.compiled, other.compiled) == (1, 1)


def test_other_sources_have_another_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Code(1), Code(2)
    assert old.answer() == 1
    monkeypatch.setattr(library, "sources_digest", lambda: "changed")
    assert new.answer() == 2
    monkeypatch.undo()


def test_sources_are_those_of_the_kernels_and_of_the_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_KERNELS", tmp_path)
    seen = set()
    for folder in ("llvm", "cpu"):
        (tmp_path / folder).mkdir()
        for content in ("one", "two"):
            (tmp_path / folder / "code.py").write_text(content)
            seen.add(library.sources_digest.__wrapped__())
    assert len(seen) == 4


def test_another_version_of_the_compiler_has_another_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = Code()
    code.answer()
    monkeypatch.setattr("llvmlite.__version__", "0.0.0")
    code.answer()
    assert code.compiled == 2


def test_two_processes_may_start_at_once(home: Path) -> None:
    def check() -> None:
        os.read(start, 1)
        for number in range(20):
            assert Code(number).answer(number) == number

    start, go = os.pipe()
    children = [Child(check) for _ in range(2)]
    os.write(go, b"..")
    assert all([child.succeeded() for child in children])
    os.close(start)
    os.close(go)
    assert len(list(home.iterdir())) == 20
    code = Code()
    assert [code.answer(number) for number in range(20)] == list(range(20))
    assert code.compiled == 0


def test_a_function_that_is_missing_is_an_error() -> None:
    with pytest.raises(LookupError, match="question"):
        Library(Code().compile()).address("question")
