"""Safetensors headers: read as safetensors itself reads them."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gatewayd_engine.model.loading.safetensors_headers import LoadError, read_header
from gatewayd_hooks.quantization import Stored

ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(path: Path, header: Any, size: int = 24) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    return path


def test_every_type_is_known(tmp_path: Path) -> None:
    kinds = {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "U16": torch.uint16,
        "U32": torch.uint32,
        "U64": torch.uint64,
        "BOOL": torch.bool,
    }
    tensors = {name: torch.zeros(3, 5, dtype=dtype) for name, dtype in kinds.items()}
    tensors["none"], tensors["one"] = torch.zeros(0, 4), torch.zeros(())
    save_file(tensors, tmp_path / "m.safetensors", {"format": "pt"})
    expected = {name: Stored(name, (3, 5)) for name in kinds}
    found = read_header(tmp_path / "m.safetensors")
    assert found == {**expected, "none": Stored("F32", (0, 4)), "one": Stored("F32", ())}


@pytest.mark.parametrize(
    ("header", "size", "sentence"),
    [
        ({"a": ENTRY}, 20, "it ends 4 bytes before a does: it is truncated"),
        ({"a": ENTRY}, 30, "its last 6 bytes belong to no tensor"),
        ({"a": ENTRY, "b": ENTRY}, 24, "a and b overlap"),
        ({"a": {**ENTRY, "data_offsets": [8, 32]}}, 32, "8 bytes before a belong to no tensor"),
        ({"a": {**ENTRY, "data_offsets": [0, 23]}}, 24, "24 bytes, but lies at"),
        ({"a": {**ENTRY, "data_offsets": [24, 0]}}, 24, "24 bytes, but lies at"),
        ({"a": {**ENTRY, "data_offsets": [0]}}, 24, "but lies at"),
        ({"a": {**ENTRY, "shape": [2, -3]}}, 24, "a has no valid dtype, shape and data_offsets"),
        ({"a": {**ENTRY, "shape": [2, 3.0]}}, 24, "a has no valid dtype"),
        ({"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, 24, "but lies at"),
        (
            {"a": {**ENTRY, "shape": [1 << 63, 0]}},
            24,
            "a has no valid dtype, shape and data_offsets",
        ),
        ({"a": {**ENTRY, "shape": [1] * 17}}, 24, "a has no valid dtype, shape and data_offsets"),
        ({"": ENTRY}, 24, "the name  is of 0 characters"),
        ({"a" * 513: ENTRY}, 24, f"the name {'a' * 200}... is of 513 characters"),
        ({"a\x1b[2J": ENTRY}, 24, "the name 'a\\x1b[2J' is of 5 characters"),
        ({"\ud800": ENTRY}, 24, "the name '\\ud800' is of 1 characters"),
        ({"a": {**ENTRY, "dtype": "F4\n" * 999}}, 24, "dtype 'F4\\nF4"),
        ({"a": {**ENTRY, "dtype": "F4"}}, 24, "has the unknown dtype F4"),
        ({"a": [1]}, 24, "a has no valid dtype"),
        ([1], 24, "no JSON object"),
        (b'{"a": 1, "a": 2}', 24, "a is duplicated"),
        (b"{" * 100_000, 24, "no JSON"),
        (b'{"a": ' + b"9" * 9000 + b"}", 24, "no JSON"),
        (b'{"\xff": 1}', 24, "no JSON"),
    ],
)
def test_what_contradicts_itself_is_named(
    header: Any, size: int, sentence: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "part.safetensors", header, size)
    with pytest.raises(LoadError) as refusal:
        read_header(path)
    assert sentence in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("length", [1 << 20, 1 << 63, (1 << 64) - 1])
def test_a_header_longer_than_its_file_is_not_read(length: int, tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}")
    with pytest.raises(LoadError, match=f"its header is of {length} bytes, the file of 10"):
        read_header(path)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["digits", "names"])
def test_a_header_that_would_take_hours_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """Products of long numbers, and comparing each name with each, take the square of the size."""
    if kind == "digits":
        number = "9" * 4000
        before = '{"a": {"dtype": "F32", "data_offsets": [0, 24], "shape": ['
        text = f"{before}{','.join([number] * 2000)}]}}}}"
    else:
        pairs = (f'"x{at}": 1' for at in (*range(200_000), 199_999))
        text = "{" + ",".join(pairs) + "}"
    path = write(tmp_path / "part.safetensors", text.encode())
    with pytest.raises(LoadError):
        read_header(path)


def test_what_is_taken_is_what_safetensors_takes(tmp_path: Path) -> None:
    """Bytes of headers are changed at random; both read the same, or neither does."""
    path = tmp_path / "part.safetensors"
    save_file({"a": torch.zeros(2, 3), "bc": torch.zeros(4, dtype=torch.int8)}, path)
    sound = path.read_bytes()
    length = 8 + int.from_bytes(sound[:8], "little")
    random_ = random.Random(11)
    taken = 0
    for _ in range(600):
        data = bytearray(sound)
        for _ in range(random_.choice((1, 1, 2))):
            data[random_.randrange(length)] = random_.choice(b'0123456789{}[]:,"FIa \\')
        path.write_bytes(data)
        try:
            ours = read_header(path)
        except LoadError:
            ours = None
        try:
            with safe_open(path, framework="pt") as file:
                theirs = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, UnicodeDecodeError):
            theirs = None
        if ours is None:
            # Where two names have become one, it takes the last, and we none.
            assert theirs is None or len(theirs) < 2, bytes(data)
            continue
        assert theirs is not None, bytes(data)
        assert {name: stored.shape for name, stored in ours.items()} == theirs
        taken += 1
    assert taken > 15
