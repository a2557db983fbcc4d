"""The logits processors in their order, called for the rows that want them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.process.messages import SamplingParams
from gatewayd_engine.process.plugin_faults import Fault, StrategyHang
from gatewayd_engine.sampling.processor_rows import Wanted
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.sampled_tokens import SampledTokens
from gatewayd_hooks.logits import ForcingProcessor, LogitsProcessor, TokenReader


class Processors(Wanted):
    """A chain of processors over the rows of the batch.

    A processor that raises costs only the requests that asked for it: it is tried again row by
    row, and the rows on which it raises are reported. Nobody is asked about these again until
    they are given back, though another step may have been launched before: a request fails once.

    Args:
        names, processors, max_running, record: see ``Wanted``.
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
        # Changes with each sequence of a row: tokens of the one before are not delivered to it.
        self._admission = np.zeros(max_running, np.int64)

    def replace(self, names: Sequence[str], processors: Sequence[LogitsProcessor]) -> None:
        """See ``Wanted``."""
        self._drain()
        super().replace(names, processors)

    def admit(
        self,
        row: int,
        params: SamplingParams,
        prompt: NDArray[np.int32],
        output: NDArray[np.int32],
    ) -> None:
        """See ``Wanted``."""
        self._admission[row] += 1
        super().admit(row, params, prompt, output)

    def remove(self, row: int) -> None:
        """See ``Wanted``."""
        self._admission[row] += 1
        super().remove(row)

    @torch.inference_mode()
    def apply(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        again: Callable[[], torch.Tensor],
    ) -> dict[int, Fault]:
        """Change the logits of those rows that want it, in place.

        Args:
            logits: float32, shape ``[n, vocab]``.
            rows: row of each line, shape ``[n]``.
            again: computes the same logits anew.

        Returns:
            Lines on which a processor raised, and what their clients are told; their logits are
            not to be used.
        """
        if self._sampled.is_pending:
            self._drain()
        wants = self._asking(rows)
        for i, processor in enumerate(self._processors):
            lines = np.flatnonzero(wants[i])
            if not len(lines):
                continue
            try:
                self._call(processor, logits, lines, rows)
            except Exception as error:  # noqa: BLE001 - a plugin may raise anything
                self._note_fault(i, error)
                hung = {i} if isinstance(error, StrategyHang) else set()
                logits.copy_(again())
                self._apply_singly(logits, rows, wants, hung)
                break
        if not (failed := self._failed):
            return {}
        return {i: failed[row] for i, row in enumerate(rows.tolist()) if row in failed}

    def _asking(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which processors are to be asked about each row, shape ``[processors, n]``."""
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
        """Row by row; processors that hung, by their place, are not asked again."""
        for line in np.flatnonzero(wants.any(0)).tolist():
            for i in np.flatnonzero(wants[:, line]).tolist():
                if i in hung:
                    self._failed[int(rows[line])] = self._fault(i)
                    break
                try:
                    # It is shown nothing that it could spoil for others before it raises.
                    one = slice(line, line + 1)
                    self._call(self._processors[i], logits[one], np.zeros(1, np.int64), rows[one])
                except Exception as error:  # noqa: BLE001 - fails this request alone
                    self._failed[int(rows[line])] = self._fault(i)
                    if isinstance(error, StrategyHang):
                        hung.add(i)
                    break

    def forced(self, row: int) -> Sequence[int]:
        """Tokens that the processors of a row force to come next."""
        self._drain()
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

    def advance(self, rows: NDArray[np.int64], tokens: NDArray[np.int32]) -> dict[int, Fault]:
        """As ``append``, within a step: it is taken back if the step fails as a whole."""
        self._ahead.update(rows.tolist())
        return self._tell(rows, tokens)

    def settle(self) -> None:
        """The step has not failed: what was said within it holds."""
        self._ahead.clear()

    @torch.inference_mode()
    def rewind(self, rows: RunningBatch, lengths: dict[int, int]) -> None:
        """Take back what was said within a step: its rows are admitted anew, as they were.

        Args:
            rows: with the tokens.
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
                except Exception as error:  # noqa: BLE001 - the row fails when the step is made
                    self._note_fault(i, error)
                    self._failed[row] = self._fault(i)
        self._ahead.clear()

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        """Tell the processors which tokens were sampled, once and for good.

        Args:
            rows: whose they are, shape ``[n]``.
            tokens: of the host, or those that only a device knows, shape ``[n]``.

        Returns:
            Lines of which a processor lost count, and what their clients are told.
        """
        return self._tell(rows, tokens)

    @torch.inference_mode()
    def _tell(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        failed: dict[int, Fault] = {}
        wants = self._asking(rows)
        for i, processor in enumerate(self._processors):
            lines = np.flatnonzero(wants[i])
            if not len(lines):
                continue
            if not isinstance(tokens, torch.Tensor):
                ids = torch.from_numpy(tokens[lines].astype(np.int64))
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
        """Wait for a device's tokens that are read on the host, and hand them over."""
        self._sampled.deliver()

    def _reader(
        self, i: int, lines: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> Callable[[NDArray[np.int32]], None]:
        """Tells a processor of the tokens of some lines, unless their rows have been given back."""
        admission = self._admission[rows]

        def read(tokens: NDArray[np.int32]) -> None:
            same = self._admission[rows] == admission
            if not same.any():
                return
            fault = self._append(
                i, rows[same], torch.from_numpy(tokens[lines[same]].astype(np.int64))
            )
            if fault is not None:
                self._failed.update(dict.fromkeys(rows[same].tolist(), fault))

        return read

    def _append(self, i: int, rows: NDArray[np.int64], ids: torch.Tensor) -> Fault | None:
        """Tell a processor of tokens; what its clients are told if it raises."""
        try:
            self._processors[i].append(torch.from_numpy(rows), ids)
        except Exception as error:  # noqa: BLE001 - fails those who asked for it
            self._note_fault(i, error)
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
