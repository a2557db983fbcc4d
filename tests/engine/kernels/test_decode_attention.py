"""Decode attention: torch reference equals float64, kernel equals both."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gatewayd_engine.kernels.attention.splits import (
    most_rows,
    num_splits,
    row_tile,
    scratch_size,
)
from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.engine.kernels import checks
from tests.engine.kernels.decoding import Case, Chunks, Lines, close

EDGES = (0, 3, 4, 62)
TREE = (-1, 0, 0, 1, 1, 2, 3)
CASES = {
    "page edges, one head each": Case(EDGES, num_heads=2),
    "split in parts, some lines in one": Case((1, 290, 127), splits=3),
    "more parts than there are": Case((300,), splits=7, num_heads=8, kv_heads=1),
    "bfloat16, split": Case((200, 4), dtype=torch.bfloat16, splits=2, dim=64, page_size=16),
    "half, one token in a page": Case((70, 4), dtype=torch.float16, page_size=1),
    "window within the context": Case((70, 2), window=9, page_size=16),
    "window in parts, with sinks": Case((300, 9), window=200, splits=2, has_sinks=True),
    "cap and sinks": Case((9, 65), softcap=2.0, has_sinks=True),
    "e4m3": Case((9, 65), element=torch.float8_e4m3fn, dtype=torch.bfloat16, dim=32),
    "e5m2": Case((65,), element=torch.float8_e5m2),
    "drafts in a row, some fewer": Case((6, 40), (2, 5), width=5, window=3),
    "drafts in parts, a line of none": Case((200, 3), (3, 0), width=3, splits=2),
    "a tree": Case((5, 150), (7, 4), width=7, parents=TREE, splits=2),
    "a tree deeper than the window": Case((60, 1), width=7, parents=TREE, window=3),
    "a tree, a window as wide": Case((60, 1), width=7, parents=TREE, window=8),
    "chunks, at their edges": Case((0, 8, 9, 17, 70), window=9, chunked=True),
    "chunks in parts, with sinks": Case(
        (300, 9, 640), window=200, splits=2, has_sinks=True, chunked=True
    ),
    "drafts across a chunk's edge": Case((6, 40, 7), (2, 5, 5), width=5, window=8, chunked=True),
    "a tree across edges of chunks": Case(
        (60, 1, 61, 63), width=7, parents=TREE, window=2, chunked=True
    ),
    "a tree, chunks as wide": Case((60, 2, 6), width=7, parents=TREE, window=8, chunked=True),
    "a shared beginning, in parts": Case((300, 256, 259, 0), shared=(64, 3), splits=2),
    "shared in one part, own in one": Case((17, 19), shared=(4, 2), has_sinks=True, softcap=3.0),
    "nothing is shared": Case((17, 150), shared=(0, 2)),
    "shared by several tiles of lines": Case((9,) * 9, shared=(2, 1), num_heads=8, kv_heads=1),
    "latents, page edges": Case(EDGES, num_heads=16, kv_heads=1, dim=40, value_dim=32),
    "latents of 128 heads, split": Case(
        (300, 7), num_heads=128, kv_heads=1, dim=24, value_dim=16, splits=3, page_size=16
    ),
    "latents in bfloat16, as wide as DeepSeek's": Case(
        (70, 5),
        num_heads=20,
        kv_heads=1,
        dim=576,
        value_dim=512,
        splits=2,
        page_size=64,
        dtype=torch.bfloat16,
    ),
    "latents of odd sizes, drafts in a row": Case(
        (6, 140), (2, 5), width=5, num_heads=6, kv_heads=1, dim=28, value_dim=22, splits=2
    ),
    "latents, a tree": Case(
        (5, 150), (7, 4), width=7, parents=TREE, splits=2, kv_heads=1, dim=24, value_dim=16
    ),
    "latents, a shared beginning": Case(
        (300, 256, 0), shared=(64, 3), splits=2, kv_heads=1, dim=24, value_dim=16
    ),
    "latents in e4m3": Case(
        (9, 65), element=torch.float8_e4m3fn, dtype=torch.bfloat16, kv_heads=1, dim=40, value_dim=32
    ),
    "a tree of several tiles": Case(
        (3,), width=64, parents=tuple(max(i - 9, -1) for i in range(64)), window=4, num_heads=6
    ),
}


CHUNKS = {
    "one chunk, nothing before": Chunks(Case((0,), (21,), width=21)),
    "chunks after lines that decode": Chunks(
        Case((9, 40, 3, 17, 0), (1, 1, 19, 2, 5), width=19, num_heads=6), 2
    ),
    "windows and sinks": Chunks(
        Case((30, 2), (40, 7), width=40, window=9, has_sinks=True, page_size=16)
    ),
    "chunks of attention, at their edges": Chunks(
        Case((30, 2, 17), (40, 7, 1), width=40, window=9, chunked=True), 1
    ),
    "chunks of attention and sinks": Chunks(
        Case((30, 2), (40, 7), width=40, window=12, chunked=True, has_sinks=True, page_size=16)
    ),
    "a cap, e5m2": Chunks(
        Case((30, 2), (4, 7), width=7, softcap=2.0, element=torch.float8_e5m2, page_size=1)
    ),
    "latents": Chunks(
        Case((5, 33, 70), (1, 9, 30), width=30, num_heads=16, kv_heads=1, dim=28, value_dim=20), 1
    ),
    "latents of 128 heads": Chunks(
        Case((33, 2), (3, 2), width=3, num_heads=128, kv_heads=1, dim=24, value_dim=16)
    ),
    "latents in bfloat16, as wide as DeepSeek's": Chunks(
        Case(
            (40, 3),
            (6, 9),
            width=9,
            num_heads=10,
            kv_heads=1,
            dim=576,
            value_dim=512,
            page_size=64,
            dtype=torch.bfloat16,
        )
    ),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_the_twin_of_prompts_gives_what_the_definition_gives(name: str) -> None:
    close(CHUNKS[name].attended(TorchKernels(), torch.device("cpu")), CHUNKS[name].wanted())


@pytest.mark.parametrize("name", CHUNKS)
def test_the_kernel_of_prompts_gives_what_its_twin_gives(
    kernels: Kernels, device: torch.device, name: str
) -> None:
    chunks = CHUNKS[name]
    close(chunks.attended(kernels, device), chunks.attended(TorchKernels(), device))


@pytest.mark.parametrize("name", CASES)
def test_the_twin_gives_what_the_definition_gives(name: str) -> None:
    lines = Lines(CASES[name], torch.device("cpu"))
    close(lines.attended(TorchKernels()), lines.wanted())


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_gives_what_its_twin_gives(
    kernels: Kernels, device: torch.device, name: str
) -> None:
    lines = Lines(CASES[name], device)
    close(lines.attended(kernels), lines.attended(TorchKernels()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "num_heads", "dim"), [(0, 2, 8), (3, 5, 24), (1, 8, 64)])
def test_answers_are_scaled_by_sinks_as_by_the_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, num_heads: int, dim: int
) -> None:
    checks.scale_by_sinks(kernels, device, dtype, n, num_heads, dim)


def test_answers_do_not_depend_on_the_lines_beside(kernels: Kernels, device: torch.device) -> None:
    case = Case((290, 127), splits=3)
    lines = Lines(case, device)
    both = lines.attended(kernels)
    lines.last[1] -= 1
    changed = lines.attended(kernels)
    assert torch.equal(both[0], changed[0])
    assert not torch.equal(both[1], changed[1])


def test_a_token_that_is_no_number_is_told_to_who_sees_it(
    kernels: Kernels, device: torch.device
) -> None:
    lines = Lines(Case((20, 20), window=8, splits=2), device)
    table = lines.pages[int(lines.page_indptr[1]) :]
    lines.pool[table[0], 1] = torch.nan  # out of the window
    assert lines.attended(kernels).isfinite().all()
    lines.pool[table[-1], 1, 0, 0] = torch.nan
    assert lines.attended(kernels)[1].isnan().all()
    assert lines.attended(kernels)[0].isfinite().all()


def test_contexts_are_split_until_the_chip_is_busy() -> None:
    assert num_splits(8, 8192, 132) == 32
    assert num_splits(8, 300, 132) == 2
    assert num_splits(64, 8192, 132) == 4
    assert num_splits(200, 8192, 132) == 1
    assert num_splits(1000, 8192, 132) == 1
    assert num_splits(1, 1 << 17, 132) == 64
    assert [row_tile(rows) for rows in (1, 16, 17, 40, 64, 200)] == [16, 16, 32, 64, 64, 64]
    cpu = torch.device("cpu")
    assert most_rows(256, torch.float32, cpu) == most_rows(576, torch.bfloat16, cpu) == 64
    assert most_rows(576, torch.float32, cpu) == 32
    assert row_tile(128, 32) == 32
    assert scratch_size(3, 4, 8, 2) == 3 * 4 * 2 * 9
    assert replace(CASES["a tree"], counts=()).real == (7, 7)
