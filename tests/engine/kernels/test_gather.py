"""Input gather: torch reference equals a loop over rows, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.torch_kernels import TorchKernels
from tests.engine.kernels import checks

LINES = st.lists(
    st.tuples(st.integers(0, 300) | st.just(1), st.integers(0, 700)), min_size=1, max_size=6
).filter(lambda lines: sum(count for count, _ in lines) > 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, page_size=st.sampled_from([1, 16, 24]))
def test_the_kernel_gathers_as_its_twin(
    kernels: Kernels, device: torch.device, lines: list[tuple[int, int]], page_size: int
) -> None:
    counts, starts = [count for count, _ in lines], [start for _, start in lines]
    checks.gather(kernels, device, counts, starts, page_size)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_when_all_decode_one_token_each_is_gathered(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    checks.gather(kernels, device, [1] * 9, [0, 1, 15, 16, 31, 4000, 5000, 17, 2], 16, dtype)


def test_no_lines_are_no_work(kernels: Kernels, device: torch.device) -> None:
    nothing = torch.zeros(0, dtype=torch.int32, device=device)
    start = torch.zeros(1, dtype=torch.int32, device=device)
    long = nothing.long()
    kernels.gather(
        nothing, start, start, nothing, nothing, start, start.view(1, 1), 16, 0, long, long, long,
        nothing,
    )  # fmt: skip


def test_the_twin_walks_over_lines() -> None:
    table = torch.tensor([[9, 8, 7], [3, 5, 4], [1, 1, 1]], dtype=torch.int32)
    ids, positions, write = (torch.zeros(4, dtype=torch.int64) for _ in range(3))
    pages = torch.zeros(5, dtype=torch.int32)
    TorchKernels().gather(
        rows=torch.tensor([1, 0], dtype=torch.int32),
        query_indptr=torch.tensor([0, 1, 4], dtype=torch.int32),
        page_indptr=torch.tensor([0, 3, 5], dtype=torch.int32),
        starts=torch.tensor([9, 2], dtype=torch.int32),
        given=torch.tensor([-1, 20, 21, -1], dtype=torch.int32),
        last_tokens=torch.tensor([70, 71, 72], dtype=torch.int32),
        block_table=table,
        page_size=4,
        max_tokens=3,
        ids=ids,
        positions=positions,
        write=write,
        pages=pages,
    )
    assert ids.tolist() == [71, 20, 21, 70]
    assert positions.tolist() == [9, 2, 3, 4]
    assert write.tolist() == [4 * 4 + 1, 9 * 4 + 2, 9 * 4 + 3, 8 * 4]
    assert pages.tolist() == [3, 5, 4, 9, 8]
