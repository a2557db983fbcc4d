"""Assignment of logits processors to batch rows, and their quarantine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.logs import MessageThrottle
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.process.plugin_faults import (
    STRATEGY_ERROR,
    Fault,
    ProcessorUnavailable,
    failure,
)
from gatewayd_hooks.host.errors import describe_error
from gatewayd_hooks.logits import LogitsProcessor, RequestRefused

_log = logging.getLogger(__name__)


class ProcessorRows:
    """Logits processors, and the batch rows that use each of them.

    A quarantined processor gets no new rows: a request that needs it is refused, as the answer
    without it would be different. All are called in inference mode, as tensors created in it cannot
    be modified outside.

    Args:
        names: names of the processors.
        processors: opened processors.
        max_running: number of batch rows.
        record: records a fault of a processor by name; returns whether to quarantine it now.
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
        self._throttle = MessageThrottle()
        self._quarantined: set[int] = set()
        # Replaced processors, which come first and are only used by rows in use.
        self._num_replaced = 0
        self._params: dict[int, SamplingParams] = {}
        self._failed: dict[int, Fault] = {}  # by row
        self._wants = np.zeros((len(self._processors), max_running), np.bool_)

    def replace(self, names: Sequence[str], processors: Sequence[LogitsProcessor]) -> None:
        """Replace the chain for rows that are added from now on.

        A row in use retains its processors until it is released, so that each answer is generated
        with one chain.
        """
        # By identity: a processor that stays keeps its rows and its quarantine.
        new = {id(processor) for processor in processors}
        replaced = [
            i
            for i, processor in enumerate(self._processors)
            if id(processor) not in new and self._wants[i].any()
        ]
        before = {id(processor): self._wants[i] for i, processor in enumerate(self._processors)}
        quarantined = {id(self._processors[i]) for i in self._quarantined}
        self._names = (*(self._names[i] for i in replaced), *names)
        self._processors = (*(self._processors[i] for i in replaced), *processors)
        self._num_replaced = len(replaced)
        self._quarantined = {
            i for i, processor in enumerate(self._processors) if id(processor) in quarantined
        }
        wants = np.zeros((len(self._processors), self._wants.shape[1]), np.bool_)
        for i, processor in enumerate(self._processors):
            wants[i] = before.get(id(processor), False)
        self._wants = wants

    def release_replaced(self) -> None:
        """Release replaced processors that no row uses any more."""
        if not self._wants[: self._num_replaced].any(1).all():
            self.replace(self._names[self._num_replaced :], self._processors[self._num_replaced :])

    def has(self, processor: LogitsProcessor) -> bool:
        """Whether a processor may still be called."""
        return any(processor is other for other in self._processors)

    def quarantine(self, name: str) -> None:
        """Quarantine a processor."""
        self._quarantined |= {
            i for i, other in enumerate(self._names) if other == name and i >= self._num_replaced
        }

    @torch.inference_mode()
    def add_row(
        self,
        row: int,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Assign a sequence to a row; see ``LogitsProcessor.admit``.

        Exceptions do not count as faults of a processor, as they may depend on the client's
        parameters.

        Raises:
            RequestRefused: a processor refuses the parameters of the request.
            ProcessorUnavailable: the request needs a processor that is quarantined, or that raised
                another exception.
        """
        self._params[row] = params
        # Replaced processors only finish the rows that they have.
        for i in range(self._num_replaced, len(self._processors)):
            if i in self._quarantined:
                self._refuse(i, row, params, prompt, output)
                continue
            try:
                self._wants[i, row] = self._processors[i].admit(row, params, prompt, output)
            except RequestRefused:
                raise
            except Exception as error:
                self._warn(i, "raised while admitting a request", error)
                raise ProcessorUnavailable(failure(self._names[i])) from error

    def _refuse(
        self,
        i: int,
        row: int,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """Refuse a request if it needs a quarantined processor, which only the processor knows."""
        try:
            asks = self._processors[i].admit(row, params, prompt, output)
            if asks:
                # It was admitted only to find out whether the request needs the processor.
                self._processors[i].remove(row)
        except Exception as error:  # noqa: BLE001 - must not fail requests that do not need it
            self._warn(i, "is quarantined and raised", error)
            return
        if asks:
            raise ProcessorUnavailable(
                f"the logits processor {self._names[i]} is out of service; "
                "send the request without it"
            )

    def _warn(self, i: int, what: str, error: Exception) -> None:
        if self._throttle.should_log(message := f"logits processor {self._names[i]} {what}"):
            _log.warning("%s: %s", message, describe_error(error))

    def _fault(self, i: int) -> Fault:
        return STRATEGY_ERROR, failure(self._names[i])

    def _record_fault(self, i: int, error: Exception) -> None:
        if self._record(self._names[i], error):
            self._quarantined.add(i)

    @torch.inference_mode()
    def remove(self, row: int) -> None:
        """Release a row."""
        self._failed.pop(row, None)
        for i in np.flatnonzero(self._wants[:, row]).tolist():
            # Before the call: if it raises, the processor is not called for this row again.
            self._wants[i, row] = False
            try:
                self._processors[i].remove(row)
            except Exception as error:  # noqa: BLE001 - the row is released in any case
                self._record_fault(i, error)

    def changes_any(self, rows: NDArray[np.int64]) -> bool:
        """Whether any of the rows, of shape ``[n]``, uses a processor."""
        # All at once first: mostly there is none, and picking columns takes longer.
        return bool(self._wants.any()) and bool(self._wants[:, rows].any())

    def wanted_by(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows uses any processor, shape ``[n]``."""
        wanted: NDArray[np.bool_] = np.logical_or.reduce(self._wants[:, rows], axis=0)
        return wanted
