"""Draft verification: torch reference equals the definition, kernels equal the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.kernels.base import Kernels
from tests.engine.kernels import verifying
from tests.engine.kernels.verifying import TWIN, accepted, random_drafted, walked


@given(st.integers(0, 1 << 30))
def test_what_is_accepted_is_the_path_that_the_model_has_chosen(seed: int) -> None:
    drafted = random_drafted(seed)
    packed, last = accepted(TWIN, drafted, torch.device("cpu"))
    width = packed.shape[1] // 2
    lines = len(drafted.said)
    for line, path in enumerate(walked(drafted)):
        length, own = int(packed[line, 0]), packed[line, 1:].tolist()
        assert own[width : width + length] == path
        assert not any(own[width + length :])
        said = drafted.said[line] if drafted.is_asked[line] else []
        assert own[:width] == [*said, *[-1] * (width - len(said))]
        assert int(last[lines - 1 - line]) == (said[path[-1]] if path else -9)
    assert int(last[lines]) == -9


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_accepts_as_its_twin(kernels: Kernels, device: torch.device, seed: int) -> None:
    verifying.accept(kernels, device, seed)


def test_the_kernel_gathers_slots_as_its_twin(kernels: Kernels, device: torch.device) -> None:
    verifying.slots(kernels, device, [1, 4, 2, 3], [0, 3, 9, 1100], 4)
    verifying.slots(kernels, device, [1], [5], 1)


def test_the_twin_pads_lines_with_slots_that_write_to_scratch() -> None:
    ids, positions, write = (torch.full((6,), -7) for _ in range(3))
    pages = torch.full((4,), -7, dtype=torch.int32)

    def column(*numbers: int) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    TWIN.slots(
        rows=column(1, 0),
        counts=column(1, 3),
        starts=column(0, 3),
        page_indptr=column(0, 1, 3),
        given=column(-1, 9, 9, 20, 21, 22),
        depths=column(0, 0, 0, 0, 1, 1),
        last_tokens=column(70, 71),
        block_table=torch.tensor([[5, 3], [8, 6]], dtype=torch.int32),
        page_size=4,
        scratch=99,
        ids=ids,
        positions=positions,
        write=write,
        pages=pages,
    )
    assert ids.tolist() == [71, 0, 0, 20, 21, 22]
    assert positions.tolist() == [0, 0, 0, 3, 4, 4]
    assert write.tolist() == [32, 99 * 4 + 1, 99 * 4 + 2, 23, 12, 13]
    assert pages.tolist() == [8, 5, 3, -7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_the_kernel_moves_what_was_accepted_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype
) -> None:
    verifying.compact_path(kernels, device, dtype)


def test_a_token_is_read_before_another_is_written_over_it() -> None:
    """Slot 2 is token 1 and slot 3 token 2, where slot 2 was before."""
    pool = torch.arange(8.0).view(4, 1, 1, 2, 1, 1).expand(-1, -1, 2, -1, -1, -1).contiguous()
    packed = torch.tensor([[3, 4, 5, 6, 7, 0, 2, 3, 0]], dtype=torch.int32)
    row, start = torch.zeros(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    TWIN.compact_path(packed, row, start, torch.tensor([[0, 1, 2, 3]], dtype=torch.int32), pool)
    assert pool[:, 0, 0, :, 0, 0].flatten().tolist() == [0, 1, 3, 4, 4, 5, 6, 7]
