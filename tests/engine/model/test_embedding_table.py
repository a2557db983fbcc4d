"""Embedding tables: the rows of the dequantized table, bit for bit, in the memory of their form."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gatewayd_engine.model import embedding_table as embedding_table_module
from gatewayd_engine.model.embedding_table import FloatTable, embedding_table
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight, SparseWeight, StaticWeight, Weight

MIB = 1 << 20
MAKING = """
import resource, sys
import torch
from gatewayd_engine.model import embedding_table as embedding_table_module
from gatewayd_engine.model.embedding_table import embedding_table
from gatewayd_hooks.quantization import GroupedWeight

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

torch.set_num_threads(1)
if sys.argv[1] == "codes":
    codes = torch.ones(1 << 16, 1 << 10, dtype=torch.int8)
    weight = GroupedWeight(codes, torch.ones(1 << 16, 32))
else:
    weight = torch.ones(1 << 14, 1 << 10)
    weight[-1, -1] = float(sys.argv[1])
# What is loaded at the first call.
embedding_table(torch.ones(4, 4), torch.float32).rows(torch.tensor([0]))
before = peak()
table = embedding_table(weight, torch.float32)
table.rows(torch.arange(8))
print(peak() - before)
"""
ROWS, COLUMNS = 700, 48
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def coded(
    kind: torch.dtype, groups: int, *, has_offsets: bool = False, is_shuffled: bool = False
) -> GroupedWeight:
    """All bytes of a kind, or the first 256 whole numbers as 8-bit floats."""
    bounds = (-128, 128) if kind == torch.int8 else (0, 256)
    return GroupedWeight(
        torch.randint(*bounds, (ROWS, COLUMNS)).float().to(kind),
        torch.randn(ROWS, groups),
        torch.randn(ROWS, groups) if has_offsets else None,
        group_of=torch.arange(COLUMNS, dtype=torch.int32) % groups if is_shuffled else None,
    )


FORMS: dict[str, Weight] = {
    **{str(dtype): torch.randn(ROWS, COLUMNS).to(dtype).float() for dtype in FLOATS},
    "sparse": SparseWeight(torch.randn(ROWS, COLUMNS)),
    "one group": coded(torch.int8, 1),
    "signed": coded(torch.int8, 3),
    "signed with offsets": coded(torch.int8, 16, has_offsets=True),
    "unsigned": coded(torch.uint8, 48),
    "unsigned with offsets": coded(torch.uint8, 3, has_offsets=True),
    "in any order": coded(torch.uint8, 3, has_offsets=True, is_shuffled=True),
    "8-bit floats": coded(torch.float8_e4m3fn, 3),
    "static floats": StaticWeight(torch.randn(ROWS, COLUMNS), "int8", 0.5),
    "static codes": StaticWeight(coded(torch.int8, 3, has_offsets=True), "int8", 0.5),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_dequantized_table(form: str, dtype: torch.dtype) -> None:
    weight = FORMS[form]
    table, wanted = embedding_table(weight, dtype), dense(weight).to(dtype)
    for ids in ([], [5], [ROWS - 1, 0, 5, 5], list(range(ROWS))):
        index = torch.tensor(ids, dtype=torch.int64)
        made = table.rows(index)
        assert made.dtype == table.dtype == dtype
        assert torch.equal(made, wanted[index])
        # A model that scales its embeddings does so in place.
        made.zero_()
        assert torch.equal(table.rows(index), wanted[index])


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_take_what_they_need_to_read_back_equal(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_table_module, "_BLOCK", 100 * COLUMNS)
    floats = torch.randn(ROWS, COLUMNS).to(dtype).float()
    size = torch.finfo(dtype).bits // 8
    assert embedding_table(floats, torch.float32).nbytes == size * ROWS * COLUMNS
    # The last number decides, too.
    floats[-1, -1] = 1 + 2**-20
    assert embedding_table(floats, torch.float32).nbytes == 4 * ROWS * COLUMNS


def test_not_a_number_stays_one() -> None:
    floats = torch.ones(ROWS, COLUMNS)
    floats[3, 5] = torch.nan
    made = embedding_table(floats, torch.float32).rows(torch.tensor([2, 3]))
    assert made.isnan().nonzero().tolist() == [[1, 5]]


def test_codes_take_a_byte_each_and_their_factors() -> None:
    codes = torch.randint(0, 16, (ROWS, COLUMNS), dtype=torch.uint8)
    factors = torch.rand(ROWS, 3)
    without, with_offsets = (
        embedding_table(GroupedWeight(codes, factors, offsets, 4), torch.float32).nbytes
        for offsets in (None, factors)
    )
    assert without == ROWS * (COLUMNS + 4 * 3)
    assert with_offsets == ROWS * (COLUMNS + 2 * 4 * 3)


@pytest.mark.parametrize(
    ("what", "most"),
    [
        ("codes", 8 * MIB),  # of 64 MiB of codes, which are kept
        ("1", 48 * MIB),  # 64 MiB of floats become 32
        ("1.0009765625", 80 * MIB),  # exact in float16 alone: one copy of 16 bits at a time
    ],
)
def test_a_table_is_made_without_another_of_floats(what: str, most: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAKING, what], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < most


def test_codes_elsewhere_than_on_a_cpu_are_dequantized() -> None:
    codes = torch.zeros(ROWS, COLUMNS, dtype=torch.int8, device="meta")
    weight = GroupedWeight(codes, torch.zeros(ROWS, 1, device="meta"))
    table = embedding_table(weight, torch.bfloat16)
    assert isinstance(table, FloatTable)
    assert (table.table.dtype, table.device.type) == (torch.bfloat16, "meta")
