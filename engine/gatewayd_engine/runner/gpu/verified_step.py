"""Result of a step with drafts that a device computes, once copied to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.transfers import PendingHostCopy
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.runner.gpu.step_outcome import StepRequests, record_prompts
from gatewayd_engine.sampling.guides.processors import GuidedProcessors
from gatewayd_engine.sampling.logprobs import LogprobColumns, describe
from gatewayd_engine.sampling.verified_drafts import record_failed
from gatewayd_engine.state.in_flight import Launched
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_engine.state.step_result import NOT_FINITE, StepResult, Tokens


@dataclass(slots=True)
class VerifiedStep:
    """Result of a step with verified drafts; implements ``Launched``.

    Attributes:
        batch: batch of the step; its drafts are not None.
        lines: sequences that get tokens, shape ``[n]``.
        pending: output of ``Kernels.accept``; then, where there are unfinished prompts, a sum over
            the last hidden state of each; then log-probabilities of all slots of sequences that
            report them, and of each prompt; then pooled hidden states.
        asked: requested outputs.
        width: slots of a sequence in the output of ``Kernels.accept``.
        has_chunks: whether there are unfinished prompts.
        raised: faults by index of ``lines`` for which a processor raised.
        shown: hidden states of all tokens of the batch, if a drafter needs them.
        processors: processors of the rows, to be notified of the accepted tokens.
        again: launches a sequence of the batch without its drafts.
    """

    batch: StepBatch
    lines: NDArray[np.int64]
    pending: PendingHostCopy
    asked: StepRequests
    width: int
    has_chunks: bool
    raised: dict[int, Fault]
    shown: torch.Tensor | None
    processors: GuidedProcessors
    again: Callable[[StepBatch, int], Launched]

    def result(self) -> StepResult:
        """Wait for the copy and interpret it."""
        (packed, *rest), lines, width = self.pending.read(), self.lines, self.width
        # Layout of ``Kernels.accept``: number of tokens, the model's token after each slot, the
        # path.
        lengths, said = packed[:, 0].astype(np.int64), packed[:, 1 : 1 + width]
        path = packed[:, 1 + width :].astype(np.int64)
        result = StepResult(hidden=self.shown)
        drafted = self._drafted()
        # No tokens: a logit of the sequence is not finite.
        good = lengths > 0
        is_own = np.arange(width) < lengths[:, None]
        ids = np.where(is_own, np.take_along_axis(said, path, 1), 0)
        result.tokens = Tokens(lines[good], ids[good], lengths[good], path[good])
        if self.has_chunks:
            sums, *rest = rest
            going_on = np.flatnonzero(~self.batch.samples)[~np.isfinite(sums)]
            result.failed = [(line, *NOT_FINITE) for line in going_on.tolist()]
        # Without drafts the sequence itself is NaN. With drafts one of these may be the cause: the
        # sequence is computed again without them.
        bad = dict.fromkeys(np.flatnonzero(~good & (drafted == 0)).tolist(), NOT_FINITE)
        spoilt = [i for i in np.flatnonzero(~good & (drafted > 0)).tolist() if i not in self.raised]
        record_failed(lines, {**bad, **self.raised}, result)
        rest = self._report(result, rest)
        record_prompts(self.asked, rest, result)
        result.model_tokens = lines, self._said(said)
        # Sequences to be repeated are not in ``result.tokens``: their own step notifies the
        # processors.
        self._notify(result)
        if not spoilt:
            return result
        again = [self.again(self.batch, i).result().shifted(i) for i in lines[spoilt].tolist()]
        merged = StepResult.merge([result, *again])
        # Dropped by ``merge``; repeated sequences keep those of their first computation.
        merged.model_tokens = result.model_tokens
        return merged

    def _drafted(self) -> NDArray[np.int64]:
        drafts = self.batch.drafts
        return np.zeros(len(self.lines), np.int64) if drafts is None else drafts.counts[self.lines]

    def _said(self, packed: NDArray[np.int32]) -> NDArray[np.int64]:
        """Resize the model's tokens to the width of the drafts."""
        drafts = self.batch.drafts
        width = 1 if drafts is None else drafts.tokens.shape[1] + 1
        few = min(width, packed.shape[1])
        said = np.full((len(packed), width), -1, np.int64)
        said[:, :few] = packed[:, :few]
        return said

    def _notify(self, result: StepResult) -> None:
        """Notify processors and grammars of the accepted tokens."""
        tokens, processors = result.tokens, self.processors
        rows = self.batch.rows[tokens.entries]
        # Depth by depth, as each call takes one token per row; the last token ends the step.
        for depth in range(int(tokens.counts.max(initial=1)) - 1):
            more = np.flatnonzero(tokens.counts > depth + 1)
            processors.advance(rows[more], tokens.ids[more, depth])
        processors.settle()
        lost = processors.append(rows, tokens.last)
        result.lost = {int(tokens.entries[i]): fault for i, fault in lost.items()}

    def _report(
        self, result: StepResult, rest: list[NDArray[np.generic]]
    ) -> list[NDArray[np.generic]]:
        """Add log-probabilities of accepted tokens to the result; return the remaining arrays."""
        asked, tokens = self.asked, result.tokens
        if not len(asked.reporting):
            return rest
        figures, rest = LogprobColumns(*rest[:4]), rest[4:]  # type: ignore[arg-type]
        counts = self._drafted()[asked.reporting] + 1
        # Where the slots of each reporting sequence begin in the figures.
        first = np.cumsum(counts) - counts
        of, index, ids, num_top = [], [], [], []
        begins = dict(zip(self.lines[asked.reporting].tolist(), first.tolist(), strict=True))
        tops = dict(zip(begins, asked.num_top.tolist(), strict=True))
        for i, line in enumerate(tokens.entries.tolist()):
            if line not in begins:
                continue
            for rank in range(int(tokens.counts[i])):
                of.append(line)
                index.append(begins[line] + int(tokens.nodes[i, rank]))
                ids.append(int(tokens.ids[i, rank]))
                num_top.append(tops[line])
        chosen = LogprobColumns(
            figures.chosen[index], figures.ranks[index], figures.values[index], figures.ids[index]
        )
        result.logprobs = describe(of, ids, num_top, chosen)
        return rest
