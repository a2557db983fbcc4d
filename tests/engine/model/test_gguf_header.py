"""GGUF headers: false ones are refused in one sentence, within the file's memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewayd_engine.model.gguf.header import MOST_KEYS, MOST_TENSORS, read_header
from gatewayd_engine.model.gguf.values import SkippedValue
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from tests.engine.gguf_files import Put, entry, entry_of, text, written

HUGE = 2**63 - 1
ENTRIES = [entry_of("general.architecture", "llama"), entry_of("llama.block_count", 2)]
TENSORS = [Put("a.weight", (4, 32), "Q8_0", bytes(4 * 34)), Put("b.weight", (3,), "F32", bytes(12))]
VALID = written(ENTRIES, TENSORS)
ROOM = 1 << 17
"""Bytes that reading takes whatever the file is: its buffer, and what Python remembers."""


def put(path: Path, data: bytes) -> Path:
    (path / "x.gguf").write_bytes(data)
    return path / "x.gguf"


def array(code: int, length: int) -> bytes:
    """What stands before the items of an array."""
    return struct.pack("<IQ", code, length)


def one(
    name: bytes | str, *, dims: tuple[int, ...] = (32,), code: int = 0, offset: int = 0
) -> bytes:
    """A file of one tensor that says whatever."""
    raw = name if isinstance(name, bytes) else name.encode()
    head = struct.pack("<4sIQQQ", b"GGUF", 3, 1, 0, len(raw)) + raw
    head += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)
    return head + bytes(-len(head) % 32) + bytes(128)


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
    entries = [
        entry(f"n{code}", code, struct.pack(f"<{form}", 7)) for code, form in numbers.items()
    ]
    entries += [
        entry("flag", 7, b"\1"),
        entry("list", 9, struct.pack("<IQ3i", 5, 3, 1, 2, 3)),
        entry_of("texts", ["", "a", "b" * 5000]),
        entry_of("long", "x" * 1025),
        entry_of("text", "ä" * 512),
    ]
    header = read_header(put(tmp_path, written(entries, TENSORS, version=2)))
    assert [header.metadata[f"n{code}"] for code in numbers] == [7] * len(numbers)
    assert header.metadata["flag"] is True
    assert header.metadata["list"] == SkippedValue("an array of 3")
    assert header.metadata["texts"] == SkippedValue("an array of 3")
    assert header.metadata["long"] == SkippedValue("a text of 1025 bytes")
    assert header.metadata["text"] == "ä" * 512
    assert header.tensors["a.weight"].shape == (4, 32)
    assert header.tensors["b.weight"].begin == header.tensors["a.weight"].begin + 160


def test_what_lies_is_where_the_alignment_says(tmp_path: Path) -> None:
    entries = [entry_of("general.alignment", 128)]
    data = written(entries, [Put("a", (2,), "F32", b"12345678")], alignment=128)
    place = read_header(put(tmp_path, data)).tensors["a"]
    assert data[place.begin : place.begin + place.nbytes] == b"12345678"
    assert place.begin % 128 == 0


WRONG = {
    "empty": (b"", "begins with b''"),
    "magic": (written([], [], magic=b"GGML"), "is no GGUF file: it begins with b'GGML'"),
    "version 1": (written([], [], version=1), "version 1; read are 2 and 3"),
    "big-endian": (written([], [], version=3 << 24), "version 3, big-endian"),
    "counts cut": (VALID[:12], "the number of tensors takes 8 bytes, of 12 there are 4 left"),
    "tensors": (written([], [], counts=(HUGE, 0)), f"{HUGE} tensors; at most {MOST_TENSORS}"),
    "keys": (written([], [], counts=(0, HUGE)), f"{HUGE} keys; at most {MOST_KEYS}"),
    "few bytes": (written([], [], counts=(9, 0)), "its 9 tensors takes 216 bytes"),
    "key twice": (written([ENTRIES[0]] * 2, []), "general.architecture is duplicated"),
    "key length": (
        written([struct.pack("<QIB", HUGE, 7, 1)], []),
        f"the name of key 0 is of {HUGE} bytes; it must be of 1 to",
    ),
    "no key": (written([entry("", 7, b"\1")], []), "the name of key 0 is of 0 bytes"),
    "key of no UTF-8": (written([entry(b"\xff\xfe", 7, b"\1")], []), "key 0 is no UTF-8"),
    "key that beeps": (written([entry("a\x07\x1b[2J", 7, b"\1")], []), "cannot be shown"),
    "text of no UTF-8": (written([entry("k", 8, text(b"\xff"))], []), "k is no UTF-8"),
    "text length": (written([entry("k", 8, struct.pack("<Q", HUGE))], []), f"k takes {HUGE} bytes"),
    "flag": (written([entry("k", 7, b"\2")], []), "k is 2, which is neither true nor false"),
    "value type": (written([entry("k", 77, b"\2")], []), "k has the unknown type 77"),
    "array length": (written([entry("k", 9, array(6, HUGE))], []), f"k takes {4 * HUGE} bytes"),
    "texts": (written([entry("k", 9, array(8, HUGE))], []), f"k takes {8 * HUGE} bytes"),
    "long text inside": (
        written([entry("k", 9, struct.pack("<IQQ", 8, 1, HUGE))], []),
        f"k takes {HUGE} bytes",
    ),
    "arrays of arrays": (
        written([entry("k", 9, array(9, 1) * 2000)], []),
        "k is an array of arrays, which is not read",
    ),
    "array of what": (written([entry("k", 9, array(77, 1))], []), "array of type 77"),
    "alignment 0": (written([entry_of("general.alignment", 0)], []), "general.alignment is 0;"),
    "alignment 24": (written([entry_of("general.alignment", 24)], []), "a power of two from 8"),
    "alignment 3": (written([entry_of("general.alignment", 3)], []), "general.alignment is 3;"),
    "alignment text": (written([entry_of("general.alignment", "x")], []), "alignment is 'x';"),
    "alignments": (written([entry_of("general.alignment", ["x"])], []), "is an array of 1"),
    "alignment 2^31": (written([entry_of("general.alignment", 1 << 31)], []), "a power of two"),
    "tensor twice": (written([], [TENSORS[0]] * 2), "tensor a.weight is duplicated"),
    "tensor of no UTF-8": (one(b"\xc3("), "the name of tensor 0 is no UTF-8"),
    "tensor's name": (one("n" * 201), "the name of tensor 0 is of 201 bytes"),
    "dimensions": (one("t", dims=(2,) * 5), "t has 5 dimensions; 1 to 4 are read"),
    "2^32 dimensions": (
        struct.pack("<4sIQQQ1sI20x", b"GGUF", 3, 1, 0, 1, b"t", 2**32 - 1),
        "t has 4294967295 dimensions",
    ),
    "no numbers": (one("t", dims=(32, 0)), "t is [0, 32]: it has no numbers"),
    "huge": (one("t", dims=(2**63, 2**63, 2**63, 2**63)), "t ends at byte"),
    "type": (one("t", code=21), "t is of type IQ3_S; read are F32, F16, BF16, Q8_0, Q4_0"),
    "unknown type": (one("t", code=99), "t is of type number 99"),
    "half a block": (one("t", dims=(48, 2), code=8), "rows of Q8_0 are in blocks of 32"),
    "offset": (one("t", offset=16), "t begins at 16, no multiple of 32"),
    "far": (one("t", offset=2**64 - 32), "t ends at byte"),
    "overlap": (
        written([], [TENSORS[0], TENSORS[1]._replace(offset=128)]),
        "a.weight and b.weight overlap",
    ),
    "cut": (VALID[:-22], "b.weight ends at byte"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(name: str, tmp_path: Path) -> None:
    data, sentence = WRONG[name]
    path = put(tmp_path, data)
    with pytest.raises(LoadError) as raised:
        read_header(path)
    said = str(raised.value)
    assert sentence in said
    assert said.startswith(str(path))
    assert said.isprintable()


def test_a_file_that_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot be read: Is a directory"):
        read_header(tmp_path)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    end = len(VALID) - 20  # the last tensor's own numbers end here
    path = put(tmp_path, VALID[:end])
    assert read_header(path).tensors
    for length in reversed(range(end)):
        os.truncate(path, length)
        with pytest.raises(LoadError, match=r"x\.gguf"):
            read_header(path)


_NUMBERS = st.sampled_from([0, 1, 3, 9, 13, 2**31, 2**32 - 1, HUGE, HUGE + 1, 2**64 - 1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(VALID) - 8), _NUMBERS, st.booleans()), max_size=4
    ),
    flips=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4),
    end=st.one_of(st.none(), st.integers(0, len(VALID))),
)
def test_whatever_it_says_it_is_read_or_refused_in_little_memory(
    tmp_path: Path,
    changes: list[tuple[int, int, bool]],
    flips: list[tuple[int, int]],
    end: int | None,
) -> None:
    data = bytearray(VALID)
    for at, number, is_long in changes:
        size = 8 if is_long else 4
        data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, "little")
    for at, value in flips:
        data[at] = value
    path = put(tmp_path, bytes(data[:end]))
    tracemalloc.start()
    try:
        header = read_header(path)
    except LoadError as error:
        assert "x.gguf" in str(error)  # noqa: PT017 - or it is read
    else:
        for tensor in header.tensors.values():
            assert 0 < tensor.begin < tensor.begin + tensor.nbytes <= path.stat().st_size
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < path.stat().st_size + ROOM


def test_a_long_vocabulary_is_not_remembered(tmp_path: Path) -> None:
    tokens = entry(
        "tokens", 9, struct.pack("<IQ", 8, 30_000) + (struct.pack("<Q", 3) + b"abc") * 30_000
    )
    path = put(tmp_path, written([tokens, entry_of("template", "x" * 1_000_000)], TENSORS))
    tracemalloc.start()
    try:
        assert read_header(path).metadata["tokens"] == SkippedValue("an array of 30000")
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()
