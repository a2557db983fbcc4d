"""The logits processors in their order, and which rows want which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.device.transfers import upload
from gatewayd_engine.faults import OutOfService, StrategyHang, failure
from gatewayd_engine.logs import Rarely
from gatewayd_engine.messages import SamplingParams
from gatewayd_engine.rows import Rows
from gatewayd_hooks.errors import told
from gatewayd_hooks.logits import ForcingProcessor, LogitsProcessor, RequestRefused

_log = logging.getLogger(__name__)


class Processors:
    """A chain of processors over the rows of the batch.

    A processor that raises costs only the requests that asked for it: it is tried again row by
    row, and the rows on which it raises are reported. One that is quarantined gets no new rows:
    a request that asks for it is refused, for an answer without it would be another. All are
    called in inference mode, for a tensor made in it cannot be changed outside.

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
        self._ahead: set[int] = set()
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

    def _note_fault(self, i: int, error: Exception) -> None:
        if self._record(self._names[i], error):
            self._quarantined.add(i)

    @torch.inference_mode()
    def remove(self, row: int) -> None:
        """The row is given back."""
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

    @torch.inference_mode()
    def apply(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        again: Callable[[], torch.Tensor],
    ) -> dict[int, str]:
        """Change the logits of those rows that want it, in place.

        Args:
            logits: float32, shape ``[n, vocab]``.
            rows: row of each line, shape ``[n]``.
            again: computes the same logits anew.

        Returns:
            Lines on which a processor raised, with a sentence for the client; their logits are
            not to be used.
        """
        failed: dict[int, str] = {}
        for i, processor in enumerate(self._processors):
            lines = np.flatnonzero(self._wants[i, rows])
            if not len(lines):
                continue
            try:
                self._call(processor, logits, lines, rows)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                self._note_fault(i, error)
                hung = {i} if isinstance(error, StrategyHang) else set()
                return self._apply_singly(logits, rows, again, hung)
        return failed

    def _apply_singly(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        again: Callable[[], torch.Tensor],
        hung: set[int],
    ) -> dict[int, str]:
        """Row by row; processors that hung, by their place, are not asked again."""
        logits.copy_(again())
        failed: dict[int, str] = {}
        for line in np.flatnonzero(self._wants[:, rows].any(0)).tolist():
            for i, processor in enumerate(self._processors):
                if not self._wants[i, rows[line]]:
                    continue
                if i in hung:
                    failed[line] = failure(self._names[i])
                    break
                try:
                    # It is shown nothing that it could spoil for others before it raises.
                    one = slice(line, line + 1)
                    self._call(processor, logits[one], np.zeros(1, np.int64), rows[one])
                except Exception as error:  # noqa: BLE001 - fails this request alone
                    failed[line] = failure(self._names[i])
                    if isinstance(error, StrategyHang):
                        hung.add(i)
                    break
        return failed

    def forced(self, row: int) -> Sequence[int]:
        """Tokens that the processors of a row force to come next."""
        for i in np.flatnonzero(self._wants[:, row]).tolist():
            processor = self._processors[i]
            if not isinstance(processor, ForcingProcessor):
                continue
            try:
                tokens = processor.forced(row)
            except Exception as error:  # noqa: BLE001 - then there is nothing to guess
                self._note_fault(i, error)
                continue
            if len(tokens):
                return tokens
        return ()

    def advance(self, rows: NDArray[np.int64], tokens: NDArray[np.int32]) -> dict[int, str]:
        """As ``append``, within a step: it is taken back if the step fails as a whole."""
        self._ahead.update(rows.tolist())
        return self.append(rows, tokens)

    def settle(self) -> None:
        """The step has not failed: what was said within it holds."""
        self._ahead.clear()

    @torch.inference_mode()
    def rewind(self, rows: Rows, lengths: dict[int, int]) -> None:
        """Take back what was said within a step: its rows are admitted anew, as they were.

        Args:
            rows: with the tokens.
            lengths: tokens that each row had before the step.
        """
        for row in self._ahead:
            prompt_len, length = int(rows.prompt_len[row]), lengths[row]
            tokens = rows.tokens[row]
            for i in np.flatnonzero(self._wants[:, row]).tolist():
                try:
                    self._processors[i].remove(row)
                    self._wants[i, row] = self._processors[i].admit(
                        row, self._params[row], tokens[:prompt_len], tokens[prompt_len:length]
                    )
                except Exception as error:  # noqa: BLE001 - the row fails when it is applied
                    self._note_fault(i, error)
        self._ahead.clear()

    @torch.inference_mode()
    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, str]:
        """Tell the processors which tokens were sampled, once and for good.

        Args:
            rows: whose they are, shape ``[n]``.
            tokens: of the host, or those that only a device knows, shape ``[n]``.

        Returns:
            Lines of which a processor lost count, with a sentence for the client.
        """
        failed: dict[int, str] = {}
        for i, processor in enumerate(self._processors):
            lines = np.flatnonzero(self._wants[i, rows])
            if not len(lines):
                continue
            if isinstance(tokens, torch.Tensor):
                ids = tokens.index_select(0, upload(lines, tokens.device)).long()
            else:
                ids = torch.from_numpy(tokens[lines].astype(np.int64))
            try:
                processor.append(torch.from_numpy(rows[lines]), ids)
            except Exception as error:  # noqa: BLE001 - fails those who asked for it
                self._note_fault(i, error)
                failed.update(dict.fromkeys(lines.tolist(), failure(self._names[i])))
        return failed

    @staticmethod
    def _call(
        processor: LogitsProcessor,
        logits: torch.Tensor,
        lines: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        processor.apply(logits, torch.from_numpy(lines), torch.from_numpy(rows[lines]))
