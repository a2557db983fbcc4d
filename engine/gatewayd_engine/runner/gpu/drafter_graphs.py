"""Compilation and CUDA graph capture of drafters' launches; see ``CaptureLaunches``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol
from weakref import ref

import torch

from gatewayd_engine.runner.gpu.cuda_graphs import Capture, Graphs, Replay

_log = logging.getLogger(__name__)

MOST_LOGITS = 256
"""Most rows of logits of a captured launch; see ``CaptureLaunches``."""


def offered_sizes(max_lines: int, logits_per_line: int = 1) -> list[int]:
    """Return the captured batch sizes: powers of two, and the largest."""
    most = min(max_lines, MOST_LOGITS // logits_per_line)
    return sorted({1 << bit for bit in range(most.bit_length())} | {most}) if most else []


class PaddedRun:
    """Implementation of ``RunPadded``.

    Args:
        launches: see ``CaptureLaunches``.
        name: see there.
        sizes: batch sizes to capture.
    """

    def __init__(self, launches: Callable[[int], None], name: str, sizes: list[int]) -> None:
        self._launches = launches
        self._name = name
        self._sizes = sizes
        self._graphs: Graphs[Replay] | None = None

    def __call__(self, num_lines: int) -> None:
        """See ``RunPadded``."""
        graphs = self._graphs
        size = None if graphs is None else graphs.size_for(num_lines)
        if graphs is None or size is None:
            self._launches(num_lines)
        else:
            graphs[size]()

    def compile(self) -> None:
        """Launch each size once, as the kernels may depend on it."""
        for size in self._sizes:
            try:
                self._launches(size)
            except Exception as error:  # noqa: BLE001 - of any drafter; the engine serves without
                what = self._name
                _log.warning("compilation of %s of %d sequences failed", what, size, exc_info=error)
                return

    def capture(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture all sizes."""
        launches = self._launches
        self._graphs = Graphs(
            self._sizes,
            lambda size: capture.whole(lambda: launches(size)),
            progress,
            f"{self._name} of %s sequences",
        )


class DrafterModel(Protocol):
    """Draft model of a drafter, while the engine has no sequences yet."""

    def compile(self) -> None:
        """Launch each kernel of its steps once, so that none is compiled during serving."""

    def capture(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture its steps.

        Args:
            capture: captures launches.
            progress: receives the fraction that is done.
        """


class DrafterLaunches:
    """Implementation of ``CaptureLaunches`` during the start of an engine.

    Launches are captured after the launch mode of kernels has been chosen.

    Args:
        max_lines: most sequences of a step.
    """

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._waiting: list[PaddedRun] = []
        self._is_over = False
        # Weak references: a drafter that could not be opened releases its model.
        self._models: list[ref[DrafterModel]] = []

    def __call__(
        self, launches: Callable[[int], None], name: str, logits_per_line: int
    ) -> PaddedRun:
        """See ``CaptureLaunches``."""
        run = PaddedRun(launches, name, offered_sizes(self._max_lines, logits_per_line))
        if not self._is_over:
            self._waiting.append(run)
        return run

    def add(self, model: DrafterModel) -> None:
        """Register a model for compilation and capture, unless its drafter releases it before."""
        self._models.append(ref(model))

    @torch.inference_mode()
    def compile(self) -> None:
        """Launch all kernels once, so that none is compiled during serving."""
        for each in [*self._alive(), *self._waiting]:
            each.compile()

    @torch.inference_mode()
    def capture(self, capture: Capture, progress: Callable[[float], None]) -> None:
        """Capture all registered launches; later registrations are launched kernel by kernel.

        Args:
            capture: captures launches.
            progress: receives the fraction that is done.
        """
        # Strong references from here on, so that no model is released during a capture.
        waiting: list[DrafterModel | PaddedRun] = [*self._alive(), *self._waiting]
        self.close()
        for done, run in enumerate(waiting):
            run.capture(capture, lambda part, done=done: progress((done + part) / len(waiting)))  # type: ignore[misc]

    def close(self) -> None:
        """End the start-up phase: later registrations are neither compiled nor captured."""
        self._models, self._waiting, self._is_over = [], [], True

    def _alive(self) -> list[DrafterModel]:
        return [model for made in self._models if (model := made()) is not None]
