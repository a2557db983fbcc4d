"""Pages of a GPU's pool go to the host and come back bit for bit, and no step waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.kv.pool import KvPool, page_bytes
from gatewayd_engine.model.attention_shape import AttentionShape
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
    made.transfers.flush()


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
    kept = pool.transfers.copy_out(list(range(20)))
    pool.transfers.wait_for(0)
    pool.data[:20] = 7.0  # somebody else has the pages, at once
    released: list[bool] = []
    pool.transfers.add(list(range(40, 60)), kept, lambda: released.append(True))
    work()
    pool.transfers.start()
    assert not pool.transfers.pending
    found = pool.data[40:60].clone()
    assert same(found, before[:20])
    assert same(pool.data[:20], torch.full_like(before[:20], 7.0))
    pool.transfers.flush()
    assert released == [True]


def test_pages_leave_and_others_come_in_one_group(pool: KvPool) -> None:
    before = pool.data.clone()
    handed: list[np.ndarray[Any, Any]] = []
    told: list[tuple[int, float]] = []
    pool.transfers.on_copied = lambda pages, seconds: told.append((pages, seconds))
    kept = pool.transfers.copy_out(list(range(20)))
    pool.transfers.wait()
    work()
    pool.data[20:40] = 3.0  # still to be computed when the copies are asked for
    for page in range(20, 40):
        pool.transfers.send_out(page, lambda found: handed.append(found.copy()))
    pool.transfers.add(list(range(20, 40)), kept, lambda: None)
    pool.transfers.start()
    pool.data[:20] = pool.data[20:40]
    assert handed == []
    assert same(pool.data[:40], before[:20].repeat(2, 1, 1, 1, 1, 1))
    pool.transfers.flush()
    threes = torch.full_like(before[20], 3.0).cpu().view(torch.uint8).flatten().numpy()
    assert len(handed) == 20
    assert all(np.array_equal(page, threes) for page in handed)
    assert [pages for pages, _ in told] == [20, 40]
    # From a crawl to a link that does not exist yet.
    assert all(1e7 < pages * PAGE / seconds < 1e12 for pages, seconds in told)


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

        pool.transfers.send_out(page, keep)
    pool.transfers.start()
    pool.data[:20] = 7.0
    for _ in range(1000):
        work()
        pool.transfers.wait()
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
    pool.transfers.add(list(range(30, 50)), pages, lambda: tier.release(keys))
    pool.transfers.start()
    assert same(pool.data[30:50].clone(), before[:20])
    pool.transfers.flush()
    assert getattr(tier, "_pins", {}) == {}
    tier.close()
