"""Chain of logits processors, applied to the batch rows that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.process.plugin_faults import Fault, StrategyHang
from gatewayd_engine.sampling.processor_rows import ProcessorRows
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sampled_tokens import SampledTokens
from gatewayd_hooks.logits import ForcingProcessor, LogitsProcessor, TokenReader


class Processors(ProcessorRows):
    """Chain of logits processors over the batch rows.

    A processor that raises only fails requests that use it: it is called again row by row, and the
    rows for which it raises are reported. Processors are not called for these rows again until the
    rows are released, though another step may have been launched before: a request fails once.

    Args:
        names, processors, max_running, record: see ``ProcessorRows``.
    """

    def __init__(
        self,
        names: Sequence[str],
        processors: Sequence[LogitsProcessor],
        max_running: int,
        record: Callable[[str, BaseException], bool],
    ) -> None:
        super().__init__(names, processors, max_running, record)
        self._ahead: set[int] = set()
        self._sampled = SampledTokens()
        # Generation of each row: pending tokens of a previous sequence are not delivered to it.
        self._generation = np.zeros(max_running, np.int64)

    def replace(self, names: Sequence[str], processors: Sequence[LogitsProcessor]) -> None:
        """See ``ProcessorRows``."""
        self._drain()
        super().replace(names, processors)

    def add_row(
        self,
        row: int,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """See ``ProcessorRows``."""
        self._generation[row] += 1
        super().add_row(row, params, prompt, output)

    def remove(self, row: int) -> None:
        """See ``ProcessorRows``."""
        self._generation[row] += 1
        super().remove(row)

    @torch.inference_mode()
    def apply(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        again: Callable[[], torch.Tensor],
    ) -> dict[int, Fault]:
        """Apply the processors of each row to its logits, in place.

        Args:
            logits: float32, shape ``[n, vocab]``.
            rows: batch row of each row of logits, shape ``[n]``.
            again: recomputes the unmodified logits.

        Returns:
            Faults by row of logits for which a processor raised; these logits must not be used.
        """
        # Processors that read tokens on the host have to see the previous step's first.
        if self._sampled.is_pending:
            self._drain()
        wants = self._active(rows)
        for i, processor in enumerate(self._processors):
            lines = np.flatnonzero(wants[i])
            if not len(lines):
                continue
            try:
                self._call(processor, logits, lines, rows)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                self._record_fault(i, error)
                hung = {i} if isinstance(error, StrategyHang) else set()
                # It may have changed some of them: start over from the originals, row by row.
                logits.copy_(again())
                self._apply_singly(logits, rows, wants, hung)
                break
        # Includes rows that failed in a step launched before this one.
        if not (failed := self._failed):
            return {}
        return {i: failed[row] for i, row in enumerate(rows.tolist()) if row in failed}

    def _active(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which processors to call for each row, shape ``[processors, n]``."""
        wants = self._wants[:, rows]
        if self._failed:
            wants &= ~np.isin(rows, list(self._failed))
        return wants

    def _apply_singly(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        wants: NDArray[np.bool_],
        hung: set[int],
    ) -> None:
        """Apply processors row by row, except those that hung, given by index."""
        for line in np.flatnonzero(wants.any(0)).tolist():
            for i in np.flatnonzero(wants[:, line]).tolist():
                if i in hung:
                    self._failed[int(rows[line])] = self._fault(i)
                    break
                try:
                    # Only the logits of one row, so that a fault cannot affect others.
                    one = slice(line, line + 1)
                    self._call(self._processors[i], logits[one], np.zeros(1, np.int64), rows[one])
                except Exception as error:  # noqa: BLE001 - fails this request alone
                    self._failed[int(rows[line])] = self._fault(i)
                    # Each hang costs the whole time limit, so it is not called for other rows.
                    if isinstance(error, StrategyHang):
                        hung.add(i)
                    break

    def forced(self, row: int) -> Sequence[int]:
        """Return the tokens that the processors of a row force to come next."""
        self._drain()
        for i in np.flatnonzero(self._wants[:, row]).tolist():
            processor = self._processors[i]
            if not isinstance(processor, ForcingProcessor):
                continue
            try:
                tokens = processor.forced(row)
            except Exception as error:  # noqa: BLE001 - then there are no drafts
                self._record_fault(i, error)
                continue
            if len(tokens):
                return tokens
        return ()

    def advance(self, rows: NDArray[np.int64], tokens: NDArray[np.int32]) -> dict[int, Fault]:
        """Append tokens provisionally within a step; ``rewind`` undoes it if the step fails.

        See ``append`` for arguments and the returned faults.
        """
        self._ahead.update(rows.tolist())
        return self._notify(rows, tokens)

    def settle(self) -> None:
        """Make the tokens of ``advance`` permanent, as the step has succeeded."""
        self._ahead.clear()

    @torch.inference_mode()
    def rewind(self, rows: RunningBatch, lengths: dict[int, int]) -> None:
        """Undo ``advance`` after a failed step: its rows are admitted again in their old state.

        Args:
            rows: batch rows, with their tokens.
            lengths: tokens that each row had before the step.
        """
        self._drain()
        for row in self._ahead:
            prompt_len, length = int(rows.prompt_len[row]), lengths[row]
            tokens = rows.tokens[row]
            for i in np.flatnonzero(self._wants[:, row]).tolist():
                try:
                    self._processors[i].remove(row)
                    self._wants[i, row] = self._processors[i].admit(
                        row, self._params[row], tokens[:prompt_len], tokens[prompt_len:length]
                    )
                except Exception as error:  # noqa: BLE001 - the row fails in its next step
                    self._record_fault(i, error)
                    self._failed[row] = self._fault(i)
        self._ahead.clear()

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        """Notify the processors of sampled tokens, permanently.

        Args:
            rows: batch row of each token, shape ``[n]``.
            tokens: on the host, or on a device that has not finished computing them, shape ``[n]``.

        Returns:
            Faults by index of ``rows`` for which a processor raised, so that its state is invalid.
        """
        return self._notify(rows, tokens)

    @torch.inference_mode()
    def _notify(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        failed: dict[int, Fault] = {}
        wants = self._active(rows)
        for i, processor in enumerate(self._processors):
            lines = np.flatnonzero(wants[i])
            if not len(lines):
                continue
            if not isinstance(tokens, torch.Tensor):
                ids = torch.from_numpy(tokens[lines].astype(np.int64))
            # Delivered by `_drain`, so that the launch does not wait for the device.
            elif isinstance(processor, TokenReader):
                self._sampled.send(tokens, self._reader(i, lines, rows[lines]))
                continue
            else:
                ids = tokens.index_select(0, upload(lines, tokens.device)).long()
            if (fault := self._append(i, rows[lines], ids)) is not None:
                failed.update(dict.fromkeys(lines.tolist(), fault))
        self._failed.update({int(rows[line]): failed[line] for line in failed})
        return failed

    @torch.inference_mode()
    def _drain(self) -> None:
        """Wait for tokens of a device that are read on the host, and deliver them."""
        self._sampled.deliver()

    def _reader(
        self, i: int, lines: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Callable[[NDArray[np.int32]], None]:
        """Return a callback that delivers tokens to a processor, except to rows released since."""
        generation = self._generation[rows]

        def read(tokens: NDArray[np.int32]) -> None:
            same = self._generation[rows] == generation
            if not same.any():
                return
            fault = self._append(
                i, rows[same], torch.from_numpy(tokens[lines[same]].astype(np.int64))
            )
            if fault is not None:
                self._failed.update(dict.fromkeys(rows[same].tolist(), fault))

        return read

    def _append(self, i: int, rows: NDArray[np.int64], ids: torch.Tensor) -> Fault | None:
        """Notify a processor of tokens; return the fault if it raises."""
        try:
            self._processors[i].append(torch.from_numpy(rows), ids)
        except Exception as error:  # noqa: BLE001 - fails the requests that use it
            self._record_fault(i, error)
            return self._fault(i)
        return None

    @staticmethod
    def _call(
        processor: LogitsProcessor,
        logits: torch.Tensor,
        lines: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        processor.apply(logits, torch.from_numpy(lines), torch.from_numpy(rows[lines]))
