"""Host page transfers: pages arrive whole and in time."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.kv import host_transfers
from gatewayd_engine.kv.host_transfers import HostTransfers

PAGES, LAYERS, BYTES = 40, 5, 256


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_every_layer_is_there_when_it_was_waited_for(
    monkeypatch: pytest.MonkeyPatch, inline: int
) -> None:
    monkeypatch.setattr(host_transfers, "_INLINE_BYTES", inline)
    rng = random.Random(3)
    random_bytes = np.random.default_rng(3)
    target = np.zeros((PAGES, LAYERS, BYTES), np.uint8)
    coming = HostTransfers(target)
    for round_ in range(60):
        pages = rng.sample(range(PAGES), rng.randrange(1, 20))
        sources = [random_bytes.integers(0, 256, LAYERS * BYTES, np.uint8) for _ in pages]
        told: list[int] = []
        half = len(pages) // 2
        coming.add(pages[:half], sources[:half], lambda told=told: told.append(1))  # type: ignore[misc]
        coming.add(pages[half:], sources[half:], lambda told=told: told.append(2))  # type: ignore[misc]
        if rng.random() < 0.8:
            coming.start()
        if rng.random() < 0.8:
            for layer in range(LAYERS):
                if coming.pending:
                    coming.wait_for(layer)
                for page, source in zip(pages, sources, strict=True):
                    assert np.array_equal(target[page, layer], source.reshape(LAYERS, -1)[layer])
        else:
            coming.wait()
        assert told == [1, 2], round_
        assert not coming.pending
        for page, source in zip(pages, sources, strict=True):
            assert np.array_equal(target[page].ravel(), source)


def test_a_layer_does_not_wait_for_those_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_transfers, "_INLINE_BYTES", 0)
    gate = threading.Event()
    copy = np.copyto
    target = np.zeros((2, LAYERS, BYTES), np.uint8)

    def slow(to: Any, source: Any) -> None:
        if source[0] == 3:
            gate.wait(30)
        copy(to, source)

    monkeypatch.setattr(np, "copyto", slow)
    coming = HostTransfers(target)
    source = np.repeat(np.arange(1, LAYERS + 1, dtype=np.uint8), BYTES)
    coming.add([1], [source], lambda: None)
    coming.start()
    coming.wait_for(0)
    coming.wait_for(1)
    assert target[1, :, 0].tolist() == [1, 2, 0, 0, 0]
    gate.set()
    coming.wait_for(2)
    assert target[1, 2, 0] == 3
    coming.wait()
    assert target[1, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert not target[0].any()


def test_a_pool_whose_pages_never_came_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_transfers, "_INLINE_BYTES", 0)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def broken(to: Any, source: Any) -> None:
        raise OSError("no such memory")

    coming = HostTransfers(np.zeros((2, LAYERS, BYTES), np.uint8))
    coming.add([1], [np.ones(LAYERS * BYTES, np.uint8)], lambda: None)
    monkeypatch.setattr(np, "copyto", broken)
    coming.start()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="were not copied"):
            coming.wait_for(0)


def test_bytes_that_make_no_page_are_refused() -> None:
    coming = HostTransfers(np.zeros((2, LAYERS, BYTES), np.uint8))
    with pytest.raises(ValueError, match="reshape"):
        coming.add([1], [np.zeros(7, np.uint8)], lambda: None)
