"""CUDA page transfers: same bytes under any order that the waits allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.kv.cuda_transfers import CudaTransfers
from tests.engine.kv.simulated_streams import Gpu

PAGES, LAYERS, BYTES = 12, 3, 4
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    return Gpu(monkeypatch, computes_at_once=False)


@pytest.fixture
def target() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (PAGES, LAYERS, BYTES), dtype=torch.uint8, generator=generator)


def choices(rng: random.Random) -> dict[str, Callable[[int], int]]:
    """Computing first, copies first, and whatever comes."""
    return {"late": lambda n: 0, "early": lambda n: n - 1, "any": rng.randrange}


class Model:
    """An engine's use of a pool, and what the same would be if all were done at once."""

    def __init__(self, gpu: Gpu, target: torch.Tensor, rng: random.Random) -> None:
        self._gpu = gpu
        self._target = target
        self._rng = rng
        self.coming = CudaTransfers(target)
        self._truth = target.flatten(1).numpy().copy()
        self._kept: list[tuple[list[Bytes], Bytes]] = []
        self.seen: list[tuple[torch.Tensor, Bytes]] = []
        self.handed: list[tuple[Bytes, Bytes]] = []
        self.num_copied = self.num_asked = 0
        self.coming.on_copied = self._count

    def _count(self, pages: int, seconds: float) -> None:
        assert seconds == 2.0
        self.num_copied += pages

    def compute(self) -> None:
        """A step reads some pages and writes to others, behind all that was asked for."""
        rng, target = self._rng, self._target
        if self.coming.pending:
            self.coming.wait() if rng.random() < 0.5 else self.coming.wait_for(0)
        reads, writes = (rng.sample(range(PAGES), 4) for _ in range(2))
        value = rng.randrange(256)
        found = torch.zeros(4, LAYERS * BYTES, dtype=torch.uint8)

        def work() -> None:
            found[:] = target.flatten(1)[reads]
            target[writes] = value

        self._gpu.main.do(work)
        self.seen.append((found, self._truth[reads].copy()))
        self._truth[writes] = value

    def swap_out(self) -> None:
        pages = self._rng.sample(range(PAGES), 3)
        self._kept.append((self.coming.copy_out(pages), self._truth[pages].copy()))
        self.num_asked += 3

    def swap_in(self) -> None:
        if not self._kept:
            return
        found, truth = self._kept.pop(self._rng.randrange(len(self._kept)))
        pages = self._rng.sample(range(PAGES), 3)
        self.coming.add(pages, found, lambda: None)
        self._truth[pages] = truth
        self.num_asked += 3

    def evict(self) -> None:
        page = self._rng.randrange(PAGES)
        truth = self._truth[page].copy()
        self.coming.send_out(page, lambda found: self.handed.append((found.copy(), truth)))
        self.num_asked += 1

    def hit(self) -> None:
        """Pages of a tier, which writes others over them once it may."""
        pages = self._rng.sample(range(PAGES), 2)
        found = np.random.default_rng(self._rng.randrange(99)).integers(
            0, 256, (2, LAYERS * BYTES), np.uint8
        )
        self._truth[pages] = found
        is_shared = self._rng.random() < 0.5
        if is_shared:
            found.flags.writeable = False
        self.coming.add(
            pages, list(found), (lambda: None) if is_shared else partial(found.fill, 55)
        )
        self.num_asked += 2

    def check(self) -> None:
        self.coming.flush()
        self._gpu.run(lambda n: 0)
        for found, truth in self.seen:
            assert np.array_equal(found.numpy(), truth)
        for page, truth in self.handed:
            assert np.array_equal(page, truth)
        assert np.array_equal(self._target.flatten(1).numpy(), self._truth)
        assert np.array_equal(self.coming.read(3), self._truth[3])
        assert self.num_copied == self.num_asked


@pytest.mark.parametrize("way", ["late", "early", "any"])
@pytest.mark.parametrize("seed", range(25))
def test_order_is_that_of_asking_whatever_is_done_first(
    gpu: Gpu, target: torch.Tensor, seed: int, way: str
) -> None:
    rng = random.Random(seed)
    model, choose = Model(gpu, target, rng), choices(rng)[way]
    asks = [model.compute, model.swap_out, model.swap_in, model.evict, model.hit]
    tells: list[Callable[[], None]] = [
        model.coming.start,
        model.coming.wait,
        lambda: gpu.run(choose, rng.randrange(9)),
    ]
    for _ in range(120):
        rng.choice(asks)()
        if rng.random() < 0.5:
            rng.choice(tells)()
    model.check()
    assert model.seen
    assert model.handed


def test_nobody_waits_and_pages_are_released_when_copies_have_ended(
    gpu: Gpu, target: torch.Tensor
) -> None:
    coming = CudaTransfers(target)
    told: list[Any] = []
    coming.on_copied = lambda pages, seconds: told.append((pages, seconds))
    before = target.clone()
    coming.send_out(4, lambda page: told.append(page.tolist()))
    coming.add([3, 5], [np.full(LAYERS * BYTES, 7, np.uint8)] * 2, lambda: told.append("released"))
    assert coming.pending
    coming.wait_for(0)
    assert not coming.pending
    coming.wait()
    assert told == []
    assert torch.equal(target, before)
    gpu.run(lambda n: 0)
    coming.wait()
    # One group: what it took counts once.
    assert told == [(3, 2.0), before[4].flatten().tolist(), "released"]
    assert (target[[3, 5]] == 7).all()


def test_a_page_is_one_copy_and_a_group_two_events(
    gpu: Gpu, target: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = CudaTransfers(target)
    made: list[str] = []
    queue = gpu.streams[1].do

    def noted(work: Callable[[], None]) -> None:
        made.append(work.__name__)
        queue(work)

    monkeypatch.setattr(gpu.streams[1], "do", noted)
    coming.add(list(range(4)), [np.zeros(LAYERS * BYTES, np.uint8)] * 4, lambda: None)
    coming.copy_out([7])
    for layer in range(LAYERS):
        coming.wait_for(layer)
    assert made == ["_happen", *["copy"] * 5, "_happen"]


def test_who_brings_no_pages_is_told_without_others_that_do(gpu: Gpu, target: torch.Tensor) -> None:
    coming = CudaTransfers(target)
    told: list[Any] = []
    coming.on_copied = lambda pages, seconds: told.append(pages)
    coming.add([], [], lambda: told.append("released"))
    assert coming.pending
    coming.wait()
    assert not coming.pending
    gpu.run(lambda n: 0)
    coming.wait()
    # What took no copy says nothing of what one takes.
    assert told == ["released"]


@pytest.mark.parametrize("is_writeable", [True, False])
def test_pages_may_be_of_any_shape(gpu: Gpu, target: torch.Tensor, is_writeable: bool) -> None:
    coming = CudaTransfers(target)
    source = np.arange(LAYERS * BYTES, dtype=np.uint8).reshape(LAYERS, BYTES)
    source.flags.writeable = is_writeable
    coming.add([2], [source], lambda: None)
    coming.flush()
    gpu.run(lambda n: 0)
    assert np.array_equal(target[2].numpy(), source)
