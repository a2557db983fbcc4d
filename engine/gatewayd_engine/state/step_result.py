"""What a batch produced: tokens, reports, and which of its sequences failed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.messages import PooledOutput, TokenLogprobs
from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.state.step_batch import StepBatch

NOT_FINITE = ("numerical_error", "the model's logits are not finite")
"""Code and sentence of a request whose numbers went wrong."""


@dataclass(slots=True)
class Tokens:
    """Tokens by line; with drafts a line may have several.

    Attributes:
        lines: of the batch that got any, shape ``[n]``.
        ids: int32, shape ``[n, width]``.
        counts: how many each got, at least 1, shape ``[n]``.
        nodes: from which of its line's tokens each was chosen: 0 for the last one that is no
            draft, then its drafts, shape ``[n, width]``.
    """

    lines: NDArray[np.int64]
    ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    nodes: NDArray[np.int64]

    @classmethod
    def single(cls, lines: NDArray[np.int64], ids: NDArray[np.int32]) -> Tokens:
        """One for each line."""
        ones = np.ones(len(lines), np.int64)
        return cls(lines, ids[:, None], ones, np.zeros((len(lines), 1), np.int64))

    @property
    def last(self) -> NDArray[np.int32]:
        """The last token of each line, shape ``[n]``."""
        last: NDArray[np.int32] = self.ids[np.arange(len(self.ids)), self.counts - 1]
        return last

    def without(self, lines: set[int]) -> Tokens:
        """Those of other lines."""
        keep = ~np.isin(self.lines, list(lines))
        return Tokens(self.lines[keep], self.ids[keep], self.counts[keep], self.nodes[keep])

    @classmethod
    def merge(cls, parts: list[Tokens]) -> Tokens:
        """All of them, as wide as the widest."""
        width = max(part.ids.shape[1] for part in parts)

        def wide(column: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
            return np.pad(column.astype(np.int64), ((0, 0), (0, width - column.shape[1])))

        return cls(
            np.concatenate([part.lines for part in parts]),
            np.concatenate([wide(part.ids) for part in parts]).astype(np.int32),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([wide(part.nodes) for part in parts]),
        )


def moves(
    batch: StepBatch, tokens: Tokens
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Drafts that were kept and stand where others were computed before them.

    Args:
        batch: with drafts.
        tokens: that came of it.

    Returns:
        Lines of the batch, places where those drafts are, and places where they belong, all of
        shape ``[n]``.
    """
    rank = np.arange(tokens.nodes.shape[1])
    index, at = np.nonzero((rank < tokens.counts[:, None]) & (tokens.nodes != rank))
    lines = tokens.lines[index]
    root = batch.starts[lines] + batch.settled[lines] - 1
    return lines, root + tokens.nodes[index, at], root + at


def _no_tokens() -> Tokens:
    return Tokens.single(np.zeros(0, np.int64), np.zeros(0, np.int32))


@dataclass(slots=True)
class StepResult:
    """What a batch produced.

    Attributes:
        tokens: of those lines that were ready for one.
        failed: line of the batch, code and sentence of those that could not be computed.
        logprobs: of the new tokens of those rows that asked, in their order; ``sequence`` is
            the line.
        prompt_logprobs: the same for prompt tokens.
        pooled: hidden states of prompts, of those rows that asked; ``sequence`` is the line.
        reported: rows whose prompts were reported, and up to which token.
        hidden: of all tokens of the batch, shape ``[num_tokens, hidden]``.
        lost: faults by line that a processor lost count of: they have their token, and end.
        said: lines of the batch that had drafts, and the model's token after the last token of
            each and after each draft, -1 where it was not asked, shape ``[n, width + 1]``.
    """

    tokens: Tokens = field(default_factory=_no_tokens)
    failed: list[tuple[int, str, str]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[PooledOutput] = field(default_factory=list)
    reported: list[tuple[int, int]] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    lost: dict[int, Fault] = field(default_factory=dict)
    said: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def failure(cls, line: int, code: str, sentence: str) -> StepResult:
        """Nothing but one failure."""
        return cls(failed=[(line, code, sentence)])

    def shifted(self, by: int) -> StepResult:
        """The same, for a batch in which the lines come later."""
        tokens = self.tokens
        return StepResult(
            Tokens(tokens.lines + by, tokens.ids, tokens.counts, tokens.nodes),
            [(line + by, code, sentence) for line, code, sentence in self.failed],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.logprobs],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.prompt_logprobs],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.pooled],
            self.reported,
            lost={line + by: fault for line, fault in self.lost.items()},
        )

    def of(self, is_alive: NDArray[np.bool_], rows: NDArray[np.int64]) -> StepResult:
        """What came of some lines of the batch, and of no others.

        Args:
            is_alive: which, shape ``[lines]``.
            rows: of all lines, shape ``[lines]``.
        """
        theirs = set(rows[is_alive].tolist())
        return replace(
            self,
            tokens=self.tokens.without(set(np.flatnonzero(~is_alive).tolist())),
            failed=[failure for failure in self.failed if is_alive[failure[0]]],
            logprobs=[report for report in self.logprobs if is_alive[report.sequence]],
            prompt_logprobs=[one for one in self.prompt_logprobs if is_alive[one.sequence]],
            pooled=[one for one in self.pooled if is_alive[one.sequence]],
            reported=[one for one in self.reported if one[0] in theirs],
            lost={line: fault for line, fault in self.lost.items() if is_alive[line]},
        )

    @classmethod
    def merge(cls, parts: list[StepResult]) -> StepResult:
        """Results of parts of a batch, in their order, as one; what drafters want is left out."""
        return cls(
            Tokens.merge([part.tokens for part in parts]),
            [failure for part in parts for failure in part.failed],
            [report for part in parts for report in part.logprobs],
            [report for part in parts for report in part.prompt_logprobs],
            [pooled for part in parts for pooled in part.pooled],
            [reported for part in parts for reported in part.reported],
            lost={line: fault for part in parts for line, fault in part.lost.items()},
        )
