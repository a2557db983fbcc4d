"""Page transfers on a device runner: same tokens, as late as waits allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.kv import pool
from gatewayd_engine.kv.cuda_transfers import CudaTransfers
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.preemption import PreemptionMode, Victim
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.tiered_engines import disk, host
from tests.engine.kv.simulated_streams import Gpu

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
CHAINS: dict[str, Callable[[Path], list[StrategyChoice]]] = {
    "host": lambda path: [host()],
    "small host, disk": lambda path: [host("384KiB"), disk(path)],
}


@pytest.fixture
def copied_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed is computed at once; pages are copied when somebody waits for them."""
    Gpu(monkeypatch, computes_at_once=True)
    monkeypatch.setattr(pool, "HostTransfers", lambda raw: CudaTransfers(torch.from_numpy(raw)))


@pytest.mark.usefixtures("copied_late", "patient")
@pytest.mark.parametrize(
    ("chain", "drafter"), [("host", None), ("small host, disk", None), ("host", "ngram")]
)
def test_pages_that_went_and_came_change_no_answer(
    make_device_engine: Make,
    undisturbed: list[list[int]],
    tmp_path: Path,
    chain: str,
    drafter: str | None,
) -> None:
    rng = random.Random(5)
    engine = make_device_engine(
        page_size=8,
        kv_pages=44,
        max_running=8,
        prefix_cache=StrategyChoice("radix"),
        preemption=StrategyChoice("swap"),
        kv_tiers=CHAINS[chain](tmp_path),
        drafter=drafter and StrategyChoice(drafter),
    )
    core = engine.core
    for _ in range(3):
        order = list(range(8))
        rng.shuffle(order)
        ids = {i: engine.submit(PROMPTS[i], max_tokens=12, ignore_eos=True)[0] for i in order}
        while core.has_work:
            engine.step()
            running = list(core._queue.running)
            # With drafts no step is on its way now, and somebody may give way.
            if drafter and running and rng.random() < 0.2:
                core._placement.preemption.preempt(Victim(rng.choice(running), PreemptionMode.SWAP))
            core.check()
        assert [engine.answers[ids[i]].tokens for i in range(8)] == undisturbed
    assert core.stats.faults == 0
    assert sum(core.stats.tier_hits.values()) > 0
    assert (core.stats.swaps > 0) is (drafter is not None)
    # Copies were told of: two seconds a group.
    assert core._placement.offload._copying.line != (0.0, 0.0)
