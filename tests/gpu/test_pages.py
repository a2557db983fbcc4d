"""Pages of a GPU's pool go to the host and come back bit for bit, and no step waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.attention.base import AttentionShape
from gatewayd_engine.kv.pool import KvPool, page_bytes
from gatewayd_hooks.kv_tiers import KEY_BYTES
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_tier_disk.config import DiskConfig
from gatewayd_tier_disk.strategy import Disk
from gatewayd_tier_host.config import HostConfig
from gatewayd_tier_host.strategy import Host

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

SHAPE = AttentionShape(
    num_layers=8,
    num_heads=4,
    num_kv_heads=4,
    head_dim=128,
    scale=1.0,
    softcap=None,
    windows=(0,) * 8,
)
NUM, SIZE = 64, 16
PAGE = page_bytes(SHAPE, SIZE, torch.bfloat16)


def key(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


@pytest.fixture
def pool() -> Iterator[KvPool]:
    made = KvPool(SHAPE, NUM, SIZE, torch.bfloat16, "cuda")
    made.data.normal_()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield made
    torch.cuda.set_sync_debug_mode("default")
    made.arrivals.flush()


def work() -> torch.Tensor:
    """Keep the GPU busy, so that copies that are not waited for come too late."""
    matrix = torch.ones(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in range(50):
        matrix = matrix @ matrix / 4096
    return matrix


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    torch.cuda.set_sync_debug_mode("default")
    return torch.equal(one, other)


def test_swapped_pages_come_back_bit_for_bit(pool: KvPool) -> None:
    before = pool.data.clone()
    work()
    kept = pool.arrivals.take_out(list(range(20)))
    pool.data[:20] = 7.0  # somebody else has the pages, at once
    released: list[bool] = []
    pool.arrivals.add(list(range(40, 60)), kept, lambda: released.append(True))
    work()
    pool.arrivals.start()
    found = []
    for layer in range(SHAPE.num_layers):
        pool.arrivals.wait_for(layer)
        found.append(pool.data[40:60, layer].clone())
    assert same(torch.stack(found, 1), before[:20])
    pool.arrivals.flush()
    assert released == [True]


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_evicted_pages_come_back_from_a_tier_bit_for_bit(
    pool: KvPool, kind: str, tmp_path: Any
) -> None:
    tier: Any = Host(HostConfig.model_validate({"memory": NUM * PAGE}))
    if kind == "disk":
        settings = {"path": str(tmp_path), "size": 1 << 30, "memory": NUM * PAGE}
        tier = Disk(DiskConfig.model_validate(settings))
    torch.cuda.set_sync_debug_mode("default")
    tier.open(engine_resources(page_bytes=PAGE, device="cuda"))
    torch.cuda.set_sync_debug_mode("error")
    before = pool.data.clone()
    put: list[int] = []
    for page in range(20):

        def keep(found: np.ndarray[Any, Any], page: int = page) -> None:
            tier.put(key(page), found)
            put.append(page)

        pool.arrivals.leave(page, keep)
        pool.data[page] = 7.0
    for _ in range(1000):
        work()
        pool.arrivals.wait()
        if len(put) == 20:
            break
    assert put == list(range(20))
    keys = [key(page) for page in range(20)]
    if kind == "disk":
        tier.flush()
        while tier.ready(keys) < 20:
            tier.fetch(keys)
    pages = tier.get(keys)
    work()
    pool.arrivals.add(list(range(30, 50)), pages, lambda: tier.release(keys))
    pool.arrivals.start()
    pool.arrivals.wait()
    assert same(pool.data[30:50].clone(), before[:20])
    pool.arrivals.flush()
    assert getattr(tier, "_pins", {}) == {}
    tier.close()
