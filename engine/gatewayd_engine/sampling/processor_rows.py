"""Which rows of the batch want which logits processors, and who of these serves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.logs import Rarely
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.process.plugin_faults import STRATEGY_ERROR, Fault, OutOfService, failure
from gatewayd_hooks.host.errors import told
from gatewayd_hooks.logits import LogitsProcessor, RequestRefused

_log = logging.getLogger(__name__)


class Wanted:
    """Logits processors, and by which rows of the batch each is wanted.

    One that is quarantined gets no new rows: a request that asks for it is refused, for an answer
    without it would be another. All are called in inference mode, for a tensor made in it cannot
    be changed outside.

    Args:
        names: of the processors.
        processors: opened.
        max_running: rows of the batch.
        record: counts a fault of the named one; whether it is to be quarantined now.
    """

    def __init__(
        self,
        names: Sequence[str],
        processors: Sequence[LogitsProcessor],
        max_running: int,
        record: Callable[[str, BaseException], bool],
    ) -> None:
        self._names = tuple(names)
        self._processors = tuple(processors)
        self._record = record
        self._rarely = Rarely()
        self._quarantined: set[int] = set()
        self._num_left = 0  # of the first of them, which only rows that run have
        self._params: dict[int, SamplingParams] = {}
        self._failed: dict[int, Fault] = {}  # by row
        self._wants = np.zeros((len(self._processors), max_running), np.bool_)

    def replace(self, names: Sequence[str], processors: Sequence[LogitsProcessor]) -> None:
        """Another chain, for rows that are admitted from now on.

        A row that is in use keeps the processors that it was admitted with, until it is given
        back: one answer is not made by two rules.
        """
        new = {id(processor) for processor in processors}
        left = [
            i
            for i, processor in enumerate(self._processors)
            if id(processor) not in new and self._wants[i].any()
        ]
        before = {id(processor): self._wants[i] for i, processor in enumerate(self._processors)}
        quarantined = {id(self._processors[i]) for i in self._quarantined}
        self._names = (*(self._names[i] for i in left), *names)
        self._processors = (*(self._processors[i] for i in left), *processors)
        self._num_left = len(left)
        self._quarantined = {
            i for i, processor in enumerate(self._processors) if id(processor) in quarantined
        }
        wants = np.zeros((len(self._processors), self._wants.shape[1]), np.bool_)
        for i, processor in enumerate(self._processors):
            wants[i] = before.get(id(processor), False)
        self._wants = wants

    def drop_left(self) -> None:
        """Forget processors that left the chain and that no row has any more."""
        if not self._wants[: self._num_left].any(1).all():
            self.replace(self._names[self._num_left :], self._processors[self._num_left :])

    def has(self, processor: LogitsProcessor) -> bool:
        """Whether a processor may still be called."""
        return any(processor is other for other in self._processors)

    def quarantine(self, name: str) -> None:
        """Put a processor out of service."""
        self._quarantined |= {
            i for i, other in enumerate(self._names) if other == name and i >= self._num_left
        }

    @torch.inference_mode()
    def admit(
        self,
        row: int,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """A sequence takes a row; see ``LogitsProcessor.admit``.

        What this raises is no fault of a processor: it looks at the client's parameters.

        Raises:
            RequestRefused: a processor says that the request asks for what cannot be.
            OutOfService: the request asks for a processor that is quarantined, or that raises
                something else.
        """
        self._params[row] = params
        for i in range(self._num_left, len(self._processors)):
            if i in self._quarantined:
                self._refuse(i, row, params, prompt, output)
                continue
            try:
                self._wants[i, row] = self._processors[i].admit(row, params, prompt, output)
            except RequestRefused:
                raise
            except Exception as error:
                self._say(i, "raised when it was given a request", error)
                raise OutOfService(failure(self._names[i])) from error

    def _refuse(
        self,
        i: int,
        row: int,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Find out whether a request asks for a quarantined processor; nobody else knows."""
        try:
            asks = self._processors[i].admit(row, params, prompt, output)
            if asks:
                self._processors[i].remove(row)
        except Exception as error:  # noqa: BLE001 - it may not stop those who do not ask for it
            self._say(i, "is quarantined and raised", error)
            return
        if asks:
            raise OutOfService(
                f"the logits processor {self._names[i]} is out of service; "
                "send the request without it"
            )

    def _say(self, i: int, what: str, error: Exception) -> None:
        if self._rarely.may(words := f"logits processor {self._names[i]} {what}"):
            _log.warning("%s: %s", words, told(error))

    def _fault(self, i: int) -> Fault:
        return STRATEGY_ERROR, failure(self._names[i])

    def _note_fault(self, i: int, error: Exception) -> None:
        if self._record(self._names[i], error):
            self._quarantined.add(i)

    @torch.inference_mode()
    def remove(self, row: int) -> None:
        """The row is given back."""
        self._failed.pop(row, None)
        for i in np.flatnonzero(self._wants[:, row]).tolist():
            self._wants[i, row] = False
            try:
                self._processors[i].remove(row)
            except Exception as error:  # noqa: BLE001 - the row is given back whatever it says
                self._note_fault(i, error)

    def wanted_by(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows wants any processor, shape ``[n]``."""
        wanted: NDArray[np.bool_] = np.logical_or.reduce(self._wants[:, rows], axis=0)
        return wanted
