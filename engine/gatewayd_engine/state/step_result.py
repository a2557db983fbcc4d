"""Result of a step: sampled tokens, logprobs, and failed sequences."""

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
"""Error code and message of a request whose logits are not finite."""


@dataclass(slots=True)
class Tokens:
    """Sampled tokens by batch entry; with drafts an entry may have several.

    Attributes:
        entries: batch entries with tokens, shape ``[n]``.
        ids: token ids, int32, shape ``[n, width]``.
        counts: number of tokens of each, at least 1, shape ``[n]``.
        nodes: the token whose logits each was sampled from: 0 for the entry's last token, then its
            drafts, shape ``[n, width]``.
    """

    entries: NDArray[np.int64]
    ids: NDArray[np.int32]
    counts: NDArray[np.int64]
    nodes: NDArray[np.int64]

    @classmethod
    def single(cls, entries: NDArray[np.int64], ids: NDArray[np.int32]) -> Tokens:
        """Create a result with one token for each batch entry."""
        ones = np.ones(len(entries), np.int64)
        return cls(entries, ids[:, None], ones, np.zeros((len(entries), 1), np.int64))

    @property
    def last(self) -> NDArray[np.int32]:
        """Last token of each entry, shape ``[n]``."""
        if self.ids.shape[1] == 1:
            return self.ids[:, 0]
        last: NDArray[np.int32] = self.ids[np.arange(len(self.ids)), self.counts - 1]
        return last

    def without(self, entries: set[int]) -> Tokens:
        """Return the tokens of all other batch entries."""
        keep = ~np.isin(self.entries, list(entries))
        return Tokens(self.entries[keep], self.ids[keep], self.counts[keep], self.nodes[keep])

    @classmethod
    def merge(cls, parts: list[Tokens]) -> Tokens:
        """Concatenate results, padded to the widest."""
        width = max(part.ids.shape[1] for part in parts)

        def wide(column: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
            return np.pad(column.astype(np.int64), ((0, 0), (0, width - column.shape[1])))

        return cls(
            np.concatenate([part.entries for part in parts]),
            np.concatenate([wide(part.ids) for part in parts]).astype(np.int32),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([wide(part.nodes) for part in parts]),
        )


def moves(
    batch: StepBatch, tokens: Tokens
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Find accepted drafts whose keys and values must move, because rejected ones precede them.

    Args:
        batch: a batch with drafts.
        tokens: the tokens accepted from it.

    Returns:
        Batch entries, current cache positions of those drafts, and their final ones, all of shape
        ``[n]``.
    """
    rank = np.arange(tokens.nodes.shape[1])
    # Where the node equals the rank, the draft is at its final position already.
    index, at = np.nonzero((rank < tokens.counts[:, None]) & (tokens.nodes != rank))
    entries = tokens.entries[index]
    root = batch.starts[entries] + batch.settled[entries] - 1
    return entries, root + tokens.nodes[index, at], root + at


def _no_tokens() -> Tokens:
    return Tokens.single(np.zeros(0, np.int64), np.zeros(0, np.int32))


@dataclass(slots=True)
class StepResult:
    """Result of a computed batch.

    Attributes:
        tokens: sampled tokens of the entries that were ready for one.
        failed: batch entry, error code and message of sequences that could not be computed.
        logprobs: logprobs of the new tokens where requested, in their order; ``sequence`` is the
            batch entry.
        prompt_logprobs: the same for prompt tokens.
        pooled: hidden states of prompts where requested; ``sequence`` is the batch entry.
        reported: rows whose prompts were reported, and up to which token.
        hidden: hidden states of all tokens of the batch, shape ``[num_tokens, hidden]``.
        lost: faults by batch entry where a processor lost its state: the token counts, and the
            sequence ends.
        model_tokens: batch entries with drafts, and the model's token after the last token of each
            and after each draft, -1 where it was not computed, shape ``[n, width + 1]``.
    """

    tokens: Tokens = field(default_factory=_no_tokens)
    failed: list[tuple[int, str, str]] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[PooledOutput] = field(default_factory=list)
    reported: list[tuple[int, int]] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    lost: dict[int, Fault] = field(default_factory=dict)
    model_tokens: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @classmethod
    def failure(cls, entry: int, code: str, sentence: str) -> StepResult:
        """Create a result with a single failure."""
        return cls(failed=[(entry, code, sentence)])

    def shifted(self, by: int) -> StepResult:
        """Return the result with all batch entries shifted."""
        tokens = self.tokens
        return StepResult(
            Tokens(tokens.entries + by, tokens.ids, tokens.counts, tokens.nodes),
            [(entry + by, code, sentence) for entry, code, sentence in self.failed],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.logprobs],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.prompt_logprobs],
            [msgspec.structs.replace(r, sequence=r.sequence + by) for r in self.pooled],
            # By batch row, which is the same in any part of the batch.
            self.reported,
            lost={entry + by: fault for entry, fault in self.lost.items()},
        )

    def of(self, is_alive: NDArray[np.bool_], rows: NDArray[np.int64]) -> StepResult:
        """Return the result of some batch entries only.

        Args:
            is_alive: which entries, shape ``[n]``.
            rows: batch rows of all entries, shape ``[n]``.
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
            lost={entry: fault for entry, fault in self.lost.items() if is_alive[entry]},
        )

    @classmethod
    def merge(cls, parts: list[StepResult]) -> StepResult:
        """Concatenate results of parts of a batch; hidden states for drafters are left out."""
        return cls(
            Tokens.merge([part.tokens for part in parts]),
            [failure for part in parts for failure in part.failed],
            [report for part in parts for report in part.logprobs],
            [report for part in parts for report in part.prompt_logprobs],
            [pooled for part in parts for pooled in part.pooled],
            [reported for part in parts for reported in part.reported],
            lost={entry: fault for part in parts for entry, fault in part.lost.items()},
        )
