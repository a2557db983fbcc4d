"""Logits processors followed by the token masks of guides, which take precedence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.select import choose
from gatewayd_engine.kernels.transfers import upload
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar
from gatewayd_engine.sampling.guides.matcher_rows import GuidedSequence, MaskStep
from gatewayd_engine.sampling.guides.matchers import GuideMatchers
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts
from gatewayd_hooks.logits import LogitsProcessor

_kernels = cache(choose)


class GuidedProcessors(Processors):
    """``Processors`` whose rows may also follow a grammar.

    Masks are computed concurrently with the layers: ``start_step`` uses a thread where a step's
    tokens are known and masks take long; on a device, which is still computing the previous tokens
    when a step starts, ``apply`` computes them.

    Args:
        names, processors, max_running, record: see ``Processors``.
        matchers: grammar matchers of sequences.
    """

    def __init__(
        self,
        names: Sequence[str],
        processors: Sequence[LogitsProcessor],
        max_running: int,
        record: Callable[[str, BaseException], bool],
        matchers: GuideMatchers,
    ) -> None:
        super().__init__(names, processors, max_running, record)
        self._matchers = matchers
        self._guided: dict[int, GuidedSequence] = {}
        self._is_guided = np.zeros(max_running, np.bool_)
        self._step: MaskStep | None = None
        self._depth: dict[int, int] = {}

    @property
    def guides_any(self) -> bool:
        """Whether any row follows a grammar."""
        return bool(self._guided)

    def is_guided(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows follows a grammar, shape ``[n]``."""
        guided: NDArray[np.bool_] = self._is_guided[rows]
        return guided

    def changed_by_chain(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows uses any logits processor of the chain, shape ``[n]``."""
        return super().wanted_by(rows)

    def wanted_by(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each of the rows uses a logits processor or a grammar, shape ``[n]``."""
        wanted = super().wanted_by(rows)
        if self._guided:
            wanted |= self._is_guided[rows]
        return wanted

    def changes_any(self, rows: NDArray[np.int64]) -> bool:
        """Whether any of the rows, of shape ``[n]``, uses a logits processor or a grammar."""
        return super().changes_any(rows) or bool(self._guided and self._is_guided[rows].any())

    def start_grammar(
        self, row: int, compiled: CompiledGrammar, output: NDArray[np.int32]
    ) -> Fault | None:
        """Make a row follow a grammar, after the output so far; return the fault if that fails."""
        self._drain()
        self._guided[row] = guided = self._matchers.start_sequence(compiled, output.tolist())
        self._is_guided[row] = True
        return guided.fault

    def remove(self, row: int) -> None:
        """See ``Processors``."""
        super().remove(row)
        if self._guided.pop(row, None) is not None:
            self._is_guided[row] = False
            self._depth.pop(row, None)

    def forced(self, row: int) -> Sequence[int]:
        """See ``Processors``."""
        return super().forced(row) or self.forced_by_guide(row)

    def forced_by_guide(self, row: int) -> Sequence[int]:
        """Return the tokens that the grammar of a row forces to come next."""
        guided = self._guided.get(row)
        if guided is None:
            return ()
        self._drain()
        return self._matchers.forced(guided)[: self.most_drafts(row)]

    def most_drafts(self, row: int) -> int:
        """Return the most drafts in one step for a row that follows a grammar."""
        return self._matchers.most_drafts(self._guided[row], len(self._guided))

    # Steps

    def start_step(self, rows: NDArray[np.int64], drafts: BatchDrafts | None) -> None:
        """Start computing the masks of rows that will get tokens in a step.

        Args:
            rows: distinct rows, shape ``[n]``.
            drafts: drafts of each.
        """
        if not self._guided:
            return
        self._drain()
        guided, chains = self._lay_out(rows, drafts)
        if guided and self._matchers.is_quick(guided, chains):
            self._step = self._matchers.fill(guided, chains)
        elif guided:
            self._matchers.start_fill(guided, chains)

    def _lay_out(
        self, rows: NDArray[np.int64], drafts: BatchDrafts | None
    ) -> tuple[list[GuidedSequence], list[list[int]]]:
        """Return the guided sequences of the rows, and the drafts of each as a chain."""
        guided: list[GuidedSequence] = []
        chains: list[list[int]] = []
        for i in np.flatnonzero(self._is_guided[rows]).tolist():
            row = int(rows[i])
            self._depth.pop(row, None)
            guided.append(self._guided[row])
            # For a tree only the first mask is computed ahead.
            has_chain = drafts is not None and drafts.parents is None
            chains.append(
                drafts.tokens[i, : drafts.counts[i]].tolist() if has_chain and drafts else []
            )
        return guided, chains

    def apply(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        again: Callable[[], torch.Tensor],
    ) -> dict[int, Fault]:
        """See ``Processors``; masks are those after the tokens of ``advance``."""
        failed = super().apply(logits, rows, again)
        lines = np.flatnonzero(self._is_guided[rows])
        if len(lines):
            depths = [self._depth.get(row, 0) for row in rows[lines].tolist()]
            failed.update(self._mask(logits, lines, rows[lines], depths))
        return failed

    def apply_along(
        self,
        logits: torch.Tensor,
        rows: NDArray[np.int64],
        drafts: BatchDrafts,
        again: Callable[[], torch.Tensor],
    ) -> dict[int, Fault]:
        """Apply as ``apply``, after each row's last token and each of its drafts, a chain.

        Args:
            logits: float32, row by row, shape ``[n + drafts, vocab]``.
            rows: rows of which none has both drafts and logits processors, shape ``[n]``.
            drafts: drafts of each.
            again: recomputes the unmodified logits.

        Returns:
            Faults by index of ``rows``.
        """
        counts = drafts.counts + 1
        of = np.repeat(np.arange(len(rows)), counts)
        faults = super().apply(logits, rows[of], again)
        if self._is_guided[rows].any():
            self._drain()
            self._step = step = self._matchers.fill(*self._lay_out(rows, drafts))
            depth = np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)
            # There is no mask after a draft that the grammar does not allow.
            lines = [
                i
                for i in np.flatnonzero(self._is_guided[rows[of]]).tolist()
                if depth[i] == 0
                or step.at(self._guided[int(rows[of[i]])], int(depth[i])) is not None
            ]
            at = np.array(lines, np.int64)
            faults.update(self._mask(logits, at, rows[of[at]], depth[at].tolist()))
        return {int(of[line]): fault for line, fault in faults.items()}

    def _mask(
        self,
        logits: torch.Tensor,
        lines: NDArray[np.int64],
        rows: NDArray[np.int64],
        depths: list[int],
    ) -> dict[int, Fault]:
        """Mask tokens that the grammars do not allow, in some rows of logits."""
        guided = [self._guided[row] for row in rows.tolist()]
        step = self._masks(guided, depths)
        failed: dict[int, Fault] = {}
        used, masked = [], []
        for i, one in enumerate(guided):
            mask = step.at(one, depths[i])
            if one.fault is not None:
                failed[int(lines[i])] = one.fault
            elif mask is not None:
                used.append(mask)
                masked.append(i)
        if used:
            bits = upload(step.masks[used], logits.device)
            index = upload(lines[masked], logits.device)
            _kernels(logits.device).mask(logits, bits, index)
            # Only processors may have forbidden everything that a grammar allows.
            if super().wanted_by(rows).any():
                _restore_allowed(logits, bits, index)
        return failed

    def _masks(self, guided: list[GuidedSequence], depths: list[int]) -> MaskStep:
        """Return the masks of sequences at these draft depths, computing missing ones."""
        self._drain()
        step = self._step
        if step is None or any(
            step.at(one, depth) is None and not one.has_failed
            for one, depth in zip(guided, depths, strict=True)
        ):
            # The matchers are at these depths already, so their current masks are the ones.
            step = self._matchers.fill(guided, [[]] * len(guided))
            step.index = {
                (id(one), depth): step.index[id(one), 0]
                for one, depth in zip(guided, depths, strict=True)
                if (id(one), 0) in step.index
            }
        return step

    def rewind(self, rows: RunningBatch, lengths: dict[int, int]) -> None:
        """See ``Processors``."""
        # Before `super`, which clears them.
        ahead = [row for row in self._ahead if row in self._guided]
        super().rewind(rows, lengths)
        self._drain()
        self._step = None
        for row in ahead:
            output = rows.tokens[row, int(rows.prompt_len[row]) : lengths[row]]
            self._guided[row] = self._matchers.start_sequence(
                self._guided[row].compiled, output.tolist()
            )
            self._depth.pop(row, None)

    def append(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        """See ``Processors``; discards the masks of the step."""
        failed = super().append(rows, tokens)
        self._step = None
        self._depth.clear()
        return failed

    def _notify(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32] | torch.Tensor
    ) -> dict[int, Fault]:
        failed = super()._notify(rows, tokens)
        lines = np.flatnonzero(self._is_guided[rows]).tolist()
        if not lines:
            return failed
        self._drain()
        guided = [(line, self._guided[int(rows[line])]) for line in lines]
        if isinstance(tokens, torch.Tensor):
            self._send(guided, tokens)
            return failed
        self._matchers.accept([(one, int(tokens[line])) for line, one in guided])
        for line, one in guided:
            row = int(rows[line])
            self._depth[row] = self._depth.get(row, 0) + 1
            if one.fault is not None:
                failed.setdefault(line, one.fault)
        return failed

    def _send(self, guided: list[tuple[int, GuidedSequence]], tokens: torch.Tensor) -> None:
        """Start copying a device's tokens to the host, to be read when the next masks are due."""

        def read(ids: NDArray[np.int32]) -> None:
            # Sequences, not rows: a row may belong to another sequence when the tokens arrive.
            # A sequence with NaN logits may have any token; its request has failed.
            coming = [(one, int(ids[line])) for line, one in guided]
            self._matchers.accept(coming, is_sure=False)

        self._sampled.send(tokens, read)

    def _drain(self) -> None:
        """See ``Processors``; also waits for the masks that a thread is computing."""
        if self._matchers.is_filling:
            self._step = self._matchers.wait_filled()
        super()._drain()


def _restore_allowed(logits: torch.Tensor, bits: torch.Tensor, lines: torch.Tensor) -> None:
    """Reset the logits of tokens that a grammar allows where processors forbid all of them."""
    at = torch.arange(32, dtype=torch.int32, device=logits.device)
    is_allowed = (bits.unsqueeze(-1) >> at & 1).flatten(1)[:, : logits.shape[1]].bool()
    masked = logits[lines]
    is_empty = masked.amax(-1, keepdim=True) == -torch.inf
    logits[lines] = masked.masked_fill(is_empty & is_allowed, 0.0)
