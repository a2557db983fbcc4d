"""Compiles the kernels of a part side by side, for a time, and without launching them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

_here = threading.local()
"""Has ``ahead`` in threads that compile."""


class _Over(Exception):
    """There is no more time to compile ahead: the thread touches the device no further."""


class Ahead:
    """Threads that launch rows' kernels with a Triton that only compiles them.

    A kernel with a fault takes the device down where it is launched, and there its row names it. A
    thread that is still compiling when the time is over is left alone, since nothing can end it.

    Args:
        threads: how many.
    """

    def __init__(self, threads: int) -> None:
        _teach_triton()
        self._pool = ThreadPoolExecutor(threads)
        self._rows: dict[tuple[Any, ...], Future[None]] = {}
        self._is_over = False

    def submit(self, where: dict[str, Any], name: str, answer: Callable[[], object]) -> None:
        """Launch what computes a row's answer; its row says what is wrong with it."""
        self._rows[_key(where, name)] = self._pool.submit(self._compile, answer)

    def finish(self, until: float) -> None:
        """Wait for all rows, but no longer."""
        wait(self._rows.values(), timeout=max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Begin nothing any more, and wait for nothing."""
        self._is_over = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def is_busy(self, where: dict[str, Any], name: str) -> bool:
        """Whether a row would compile what is still being compiled, and wait as long for it.

        A row that no thread came to has most likely the kernel of another of its name.
        """
        mine = self._rows.get(_key(where, name))
        if mine is not None and not mine.cancelled():
            return mine.running()
        return any(row.running() for (other, *_), row in self._rows.items() if other == name)

    def check(self) -> None:
        """Stop what has outlasted the time.

        Raises:
            _Over: it has.
        """
        if self._is_over:
            raise _Over

    @torch.inference_mode()
    def _compile(self, answer: Callable[[], object]) -> None:
        _here.ahead = self
        try:
            answer()
        except Exception:  # noqa: BLE001 - its row comes upon the same
            return
        finally:
            del _here.ahead


def _key(where: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Contexts are shorter when rows are compiled ahead."""
    return (name, *sorted(item for item in where.items() if item[0] != "context"))


def _teach_triton() -> None:
    """Have it compile, and not launch, in threads of ``Ahead``; as its ``warmup`` does.

    It stays so: threads that are left alone must not launch anything while rows are timed. No
    operation of the engine reads on the host, between two kernels, what the first computes.
    """
    triton = sys.modules.get("triton.runtime.jit")
    if triton is None or triton.JITFunction.run.__module__ == __name__:
        return
    launch = triton.JITFunction.run

    def run(self: Any, *args: Any, **options: Any) -> Any:
        ahead: Ahead | None = getattr(_here, "ahead", None)
        if ahead is None:
            return launch(self, *args, **options)
        ahead.check()
        made = launch(self, *args, **{**options, "warmup": True})
        ahead.check()
        return made

    triton.JITFunction.run = run
