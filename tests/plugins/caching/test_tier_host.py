"""``host`` tier: pages in host memory beside a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_hooks.kv_tiers import KEY_BYTES
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_tier_host.config import HostConfig
from gatewayd_tier_host.strategy import Host

MIB = 1 << 20
empty = torch.empty


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


@pytest.mark.parametrize("page_bytes", [2 * MIB, 7 * MIB // 4, 300 * MIB])
def test_no_more_is_pinned_than_is_said(monkeypatch: pytest.MonkeyPatch, page_bytes: int) -> None:
    pinned: list[int] = []

    def reserved(shape: tuple[int, int], *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert dtype == torch.uint8
        assert pin_memory
        size = shape[0] * shape[1]
        # As torch's allocator of pinned memory does it.
        pinned.append(1 << (size - 1).bit_length())
        return empty((1, 1), dtype=dtype).expand(shape)

    monkeypatch.setattr(torch, "empty", reserved)
    host = Host(HostConfig.model_validate({"memory": 4096 * MIB}))
    host.open(engine_resources(page_bytes=page_bytes, device="cuda"))
    # A page is one more than was asked for; large ones may be rounded each by itself.
    most = 2 * 4096 * MIB if page_bytes > 256 * MIB else 4096 * MIB + 128 * MIB
    assert 4096 * MIB - page_bytes <= sum(pinned) <= most


def test_pinned_pages_are_kept_in_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewayd_tier_host.strategy._PINNED", 40)
    monkeypatch.setattr(
        torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype).fill_(9)
    )
    host = Host(HostConfig.model_validate({"memory": 16 * 7}))
    host.open(engine_resources(page_bytes=16, device="cuda:0"))
    left: list[Any] = []
    for number in range(10):
        page = np.full(16, number, np.uint8)
        left += [(k, int(p[0])) for k, p in host.put(key(number), page)]
        page[:] = 77  # whoever gave it has it again
    assert left == [(key(number), number) for number in range(3)]
    found = host.get([key(number) for number in range(3, 10)])
    assert [page.tolist() for page in found] == [[number] * 16 for number in range(3, 10)]
    host.close()
    assert host.find([key(5)]) == 0
