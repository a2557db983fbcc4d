"""Engines with KV tiers, for tests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_tier_disk.store import Store

PROMPT = list(range(5, 105))


def host(memory: str = "64MiB") -> StrategyChoice:
    return StrategyChoice("host", {"memory": memory})


def disk(path: Path, **settings: Any) -> StrategyChoice:
    return StrategyChoice("disk", {"path": str(path), "size": "64MiB", **settings})


def evict_all(engine: Any) -> None:
    """Others have had every page that nobody holds, and written to it."""
    pages = engine.core._pages
    taken = [pages.allocate() for _ in range(pages.num_available)]
    engine.core._placement._block_tables._pool.data[taken] = 7.0
    pages.release(taken)


def flush(engine: Any) -> None:
    """What was given up is on the disk."""
    engine.core.strategies.tiers._tiers[0].strategy.flush()


def held_reads(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The disk gives no page until this is set."""
    may_read, read = threading.Event(), Store.read

    def waiting(self: Store, name: bytes) -> bytes | None:
        assert may_read.wait(60)
        return read(self, name)

    monkeypatch.setattr(Store, "read", waiting)
    return may_read


def first_step(engine: Any, prompt: list[int], **fields: Any) -> int:
    """Submit, and step until the first token has come."""
    (i,) = engine.submit(prompt, ignore_eos=True, **{"max_tokens": 8, **fields})
    while not engine.answers[i].tokens:
        engine.step()
        engine.core.check()
    return int(i)
