"""Grammar masks: torch reference equals single bits, kernel equals the reference."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.kernels.base import Kernels
from tests.engine.kernels import checks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("n", "vocab"), [(1, 1), (2, 32), (5, 77), (3, 4096 + 33)])
def test_the_kernel_masks_as_its_twin(
    kernels: Kernels, device: torch.device, dtype: torch.dtype, n: int, vocab: int
) -> None:
    checks.mask(kernels, device, dtype, n, vocab)


def test_no_lines_are_no_work(kernels: Kernels, device: torch.device) -> None:
    logits = torch.zeros(2, 40, device=device)
    nothing = torch.zeros(0, 2, dtype=torch.int32, device=device)
    kernels.mask(logits, nothing, nothing[:, 0])
    assert not logits.any()


def test_the_twin_forbids_what_has_no_bit() -> None:
    words = torch.tensor([[-(1 << 31) + 6, 1]], dtype=torch.int32)
    logits = torch.arange(80.0).view(2, 40)
    checks.TWIN.mask(logits, words, torch.tensor([1]))
    assert logits[0].tolist() == list(range(40))
    assert logits[1].isfinite().nonzero().flatten().tolist() == [1, 2, 31, 32]
    assert logits[1, 31] == 71.0
