"""What the host does for pages of a GPU, with streams that are played: nobody may have to wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from gatewayd_engine.kv import cuda
from gatewayd_engine.kv.cuda import CudaArrivals

PAGES, LAYERS, BYTES = 12, 3, 64


class Stream:
    """Notes what it waits for; work itself is done at once."""

    now: ClassVar[Stream]

    def __init__(self, device: object = None) -> None:
        self.waits: list[object] = []

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other)

    def wait_event(self, event: Event) -> None:
        self.waits.append(event)

    def synchronize(self) -> None:
        Event.is_over = True


class Event:
    """Is over when the test says so."""

    is_over: ClassVar[bool] = False

    def __init__(self, enable_timing: bool = False) -> None:
        self.stream: Stream | None = None

    def record(self) -> None:
        self.stream = Stream.now

    def query(self) -> bool:
        assert self.stream is not None
        return Event.is_over

    def elapsed_time(self, other: Event) -> float:
        return 2000.0


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Streams and events; what follows is queued on the one that it gives."""
    main = Stream.now = Stream()
    Event.is_over = False

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        before, Stream.now = Stream.now, stream
        yield
        Stream.now = before

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(cuda, "_host", lambda size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    return main


@pytest.fixture
def target() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (PAGES, LAYERS, BYTES), dtype=torch.uint8, generator=generator)


def test_pages_are_released_when_their_copies_have_ended_and_not_before(
    played: Stream, target: torch.Tensor
) -> None:
    coming = CudaArrivals(target)
    told: list[Any] = []
    coming.on_copied = lambda pages, seconds: told.append((pages, seconds))
    sources = [np.full(LAYERS * BYTES, 7, np.uint8), np.full(LAYERS * BYTES, 9, np.uint8)]
    sources[1].flags.writeable = False  # as a tier may give it
    coming.add([3, 5], sources, lambda: told.append("released"))
    coming.start()
    assert coming._stream.waits == [played]  # type: ignore[attr-defined]
    for layer in range(LAYERS):
        assert coming.pending
        coming.wait_for(layer)
    assert not coming.pending
    assert len(played.waits) == LAYERS
    assert all(event.stream is coming._stream for event in played.waits)  # type: ignore[attr-defined]
    assert (target[3] == 7).all()
    assert (target[5] == 9).all()
    coming.wait()
    assert told == []
    Event.is_over = True
    coming.wait()
    assert told == [(2, 2.0), "released"]


def test_a_page_may_change_hands_behind_its_copy_and_is_handed_on_after_it(
    played: Stream, target: torch.Tensor
) -> None:
    coming = CudaArrivals(target)
    before = target.clone()
    handed: list[np.ndarray[Any, Any]] = []
    coming.leave(4, handed.append)
    (event,) = played.waits
    assert event.stream is coming._stream  # type: ignore[attr-defined]
    target[4] = 0
    assert handed == []
    coming.flush()
    (page,) = handed
    assert np.array_equal(page, before[4].numpy().ravel())


def test_what_was_taken_out_comes_back_as_it_was(played: Stream, target: torch.Tensor) -> None:
    coming = CudaArrivals(target)
    before = target.clone()
    kept = coming.take_out([1, 2, 8])
    target[:] = 0
    released: list[bool] = []
    coming.add([0, 4, 6], kept, lambda: released.append(True))
    coming.add([7], coming.take_out([0]), lambda: released.append(True))
    coming.wait()
    assert torch.equal(target[[0, 4, 6]], before[[1, 2, 8]])
    assert np.array_equal(coming.read(4), before[2].numpy().ravel())
    coming.flush()
    assert released == [True, True]
