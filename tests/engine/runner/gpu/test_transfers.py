"""Host-device transfers: copies that arrive as sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.kernels.transfers import HostCopier, PendingHostCopy, upload

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.bool_])
def test_what_is_uploaded_is_a_copy(dtype: Any) -> None:
    array = np.ones((2, 3), dtype)
    sent = upload(array, CPU)
    array[:] = 0
    assert sent.shape == (2, 3)
    assert sent.numpy().dtype == dtype
    assert sent.numpy().all()


def test_a_part_of_an_array_is_sent_as_it_reads() -> None:
    array = np.arange(12).reshape(3, 4)[:, 1:3].T
    assert upload(array, CPU).tolist() == array.tolist()


def test_a_pending_copy_has_the_values_at_the_time_of_the_copy() -> None:
    tensors = [torch.arange(6).view(2, 3), torch.tensor([1.5, torch.nan]), torch.zeros(0)]
    copier = HostCopier(CPU)
    pending = copier.copy(tensors, copier.allocate(tensors))
    tensors[0].zero_()
    whole, floats, nothing = pending.read()
    assert whole.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert floats[0] == 1.5
    assert np.isnan(floats[1])
    assert nothing.shape == (0,)


def test_a_pending_copy_references_its_sources_until_it_is_read() -> None:
    host, source, waited = torch.zeros(3), torch.arange(3.0), []

    class Event:
        def synchronize(self) -> None:
            waited.append(pending._sources)
            host.copy_(source)

    event: Any = Event()
    pending = PendingHostCopy([host], [source], event)
    assert pending.read()[0].tolist() == [0, 1, 2]
    assert waited == [[source]]
    assert pending._sources == ()


def test_a_device_copies_beside_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            said.append(device)

        def wait_stream(self, stream: str) -> None:
            said.append(("waits for", stream))

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            assert blocking

        def record(self, stream: Stream) -> None:
            said.append("recorded")

        def synchronize(self) -> None:
            said.append("waited")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        said.append("begins")
        yield
        said.append("ends")

    def empty(shape: Any, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return torch.zeros(shape, dtype=dtype)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "main")
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch, "empty", empty)
    copier = HostCopier(torch.device("cuda", 1))
    tensors = [torch.arange(4)]
    pending = copier.copy(tensors, copier.allocate(tensors))
    assert pending.read()[0].tolist() == [0, 1, 2, 3]
    device, *rest = said
    assert device == torch.device("cuda", 1)
    assert rest == [("waits for", "main"), "begins", "recorded", "ends", "waited"]
