"""Garbage collector pause: ends with the last of several bodies parsed in threads."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from gatewayd.http import body_threads


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.enable()


@pytest.mark.usefixtures("hasty")
def test_it_is_on_when_the_last_has_ended() -> None:
    def work() -> None:
        for _ in range(3000):
            with body_threads.gc_paused():
                assert not gc.isenabled()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()


def test_it_is_off_until_the_last_has_ended() -> None:
    first, second = body_threads.gc_paused(), body_threads.gc_paused()
    with first:
        second.__enter__()
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
