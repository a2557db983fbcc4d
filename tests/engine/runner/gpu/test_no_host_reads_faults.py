"""No host reads: waits and copies of numbers in a capture are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.runner.gpu.no_host_reads import DEVICE, Unread, Waits

FAULTS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.max()),
    "branch": lambda x: x if (x > 0).any() else -x,
    "list": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to the host": lambda x: x.to("cpu", non_blocking=True),
    "numpy": lambda x: x.numpy(),
    "membership": lambda x: 1.0 in x,
    "equality": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "a mask": lambda x: x[x > 0],
    "a mask written to": lambda x: x.__setitem__(x > 0, 1.0),
    "selection": lambda x: x.masked_select(x > 0),
    "unique": torch.unique,
    "bincount": lambda x: x.flatten().int().bincount(),
    "counts": lambda x: x.repeat_interleave(torch.ones_like(x[:, 0], dtype=torch.int64), 0),
    "an index": lambda x: [1, 2][x.flatten()[0].int()],
    "a tensor": lambda x: torch.tensor([1.0], device=x.device),
    "an array": lambda x: torch.as_tensor([1.0], device=x.device),
    "a new tensor": lambda x: x.new_tensor(1.0),
    "numbers of the host": lambda x: x.copy_(torch.zeros(x.shape)),
    "an upload": lambda x: torch.zeros(3).to(x.device, non_blocking=True),
    "a number by index": lambda x: x.__setitem__(torch.arange(2, device=x.device), 1.0),
    "a number in a place": lambda x: x.__setitem__((0, 1), 1.0),
    "a wait": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("fault", FAULTS)
@torch.inference_mode()
def test_a_fault_is_found(fault: str) -> None:
    capture: Any = Unread()
    x = torch.zeros(4, 4, device=DEVICE)
    with pytest.raises(Waits):
        capture.whole(lambda: FAULTS[fault](x))
    assert len(capture.errors) == 1


@torch.inference_mode()
def test_what_waits_for_nothing_is_no_fault() -> None:
    capture, x = Unread(), torch.zeros(4, 4, device=DEVICE)

    def launches() -> None:
        index = torch.arange(2, device=DEVICE)
        x[index] = x[index, :1] * 2.0 + torch.full((2, 1), 3.0, device=DEVICE)
        x[0] = 1.0
        x.masked_fill_(x.isnan(), 0.0)
        x.to(torch.int32).repeat_interleave(2, 0, output_size=8)

    capture.whole(launches)
    assert capture.captured == 1
