"""Verification of draft tokens in speculative decoding, after one forward pass over all of them.

From a sequence's last token on, the model's token for the next position is chosen exactly as
without speculation. If a draft token equals it, the draft's logits give the token after, and so on;
the first token that no draft matches is the last of the step. Deterministic drafts are verified
this way for greedy and sampling requests alike: that is the rejection rule of Leviathan et al.
(2023, arXiv 2211.17192, algorithm 1) for a distribution of one token, and it leaves a request's
tokens identical to those without speculation. For drafts that were sampled from a distribution q
the rule itself is used: accept x with probability min(1, p(x) / q(x)), or sample from the residual
max(p - q, 0).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.process.plugin_faults import Fault
from gatewayd_engine.sampling.processors import Processors
from gatewayd_engine.sampling.random import ACCEPT, uniform
from gatewayd_engine.sampling.token_picker import TokenPicker
from gatewayd_engine.state.running_batch import RunningBatch
from gatewayd_engine.state.step_batch import BatchDrafts
from gatewayd_engine.state.step_result import NOT_FINITE, Tokens


class DraftVerification:
    """Verification of the drafts of one step's sequences.

    Args:
        lines: sequences of the batch that get tokens, shape ``[n]``.
        row: their batch rows, shape ``[n]``.
        starts: position of each sequence's last token before its drafts, shape ``[n]``.
        first: index of that token's logits, shape ``[n]``; those of its drafts follow.
        drafts: drafts of the sequences.
        logits: float32, shape ``[sum of 1 + drafts, vocab]``; not changed.
        rows, processors, choice: batch rows, logits processors and token selection.

    Attributes:
        failed: faults by index of a sequence.
        is_finite: whether each row of logits is finite.
        spoilt: sequences that get no tokens here, because a draft may have caused NaN in their
            logits: they have to be recomputed without drafts, shape ``[n]``.
        said: the model's token at each row of logits; -1 where none was chosen.
    """

    def __init__(
        self,
        lines: NDArray[np.int64],
        row: NDArray[np.int64],
        starts: NDArray[np.int64],
        first: NDArray[np.int64],
        drafts: BatchDrafts,
        logits: torch.Tensor,
        rows: RunningBatch,
        processors: Processors,
        choice: TokenPicker,
    ) -> None:
        self._lines = lines
        self._row = row
        self._starts = starts
        self._first = first
        self._drafts = drafts
        self._logits = logits
        self._rows = rows
        self._processors = processors
        self._choice = choice
        self._is_processed = processors.wanted_by(row)
        # Processed logits and rejection sampling depend on earlier tokens; the rest is chosen now.
        self._is_plain = ~self._is_processed & ~((drafts.source >= 0) & (drafts.counts > 0))
        self.failed: dict[int, Fault] = {}
        self.is_finite = np.ones(len(logits), np.bool_)
        self.said = self._choose_plain()
        rest = np.flatnonzero(~self._is_plain)
        if len(rest):
            index = self._index(rest)[1]
            # NaN and positive infinity show in the maximum; negative infinity is a masked token.
            best = logits[torch.from_numpy(index)].amax(-1)
            self.is_finite[index] = torch.isfinite(best).numpy()
        self.spoilt = self._find_spoilt()

    def _index(
        self, lines: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the sequence, the row of logits and the tree node of all tokens of sequences."""
        counts = self._drafts.counts[lines] + 1
        node = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(lines, counts), np.repeat(self._first[lines], counts) + node, node

    def _find_spoilt(self) -> NDArray[np.int64]:
        """Return the sequences with drafts that have non-finite logits anywhere."""
        if self.is_finite.all():
            return np.zeros(0, np.int64)
        line, index, _ = self._index(np.flatnonzero(self._drafts.counts))
        return np.unique(line[~self.is_finite[index]])

    def _choose_plain(self) -> NDArray[np.int64]:
        """Choose the model's token after each token of sequences without dependencies."""
        chosen = np.full(len(self._logits), -1, np.int64)
        plain = np.flatnonzero(self._is_plain)
        if not len(plain):
            return chosen
        line, index, node = self._index(plain)
        _, depths = self._drafts.lineage(self._drafts.tokens.shape[1] + 1)
        positions = self._starts[line] + depths[line, node] + 1
        logits = self._logits
        if len(index) < len(logits):
            logits = logits[torch.from_numpy(index)]
        tokens, best = self._choice.tokens(logits, self._row[line], positions)
        self.is_finite[index] = torch.isfinite(best).numpy()
        chosen[index] = tokens.numpy()
        return chosen

    def run(self) -> Tokens:
        """Choose each sequence's tokens: the accepted drafts and one more."""
        n, width = len(self._lines), self._drafts.tokens.shape[1] + 1
        ids = np.zeros((n, width), np.int32)
        nodes = np.zeros((n, width), np.int64)
        counts = np.zeros(n, np.int64)
        alive = np.setdiff1d(np.arange(n), self.spoilt)
        # Walks down the trees of all sequences at once; node 0 is the last token before the drafts.
        node = np.zeros(len(alive), np.int64)
        for depth in range(width):
            tokens = self._next(alive, node, depth)
            alive, node, tokens = self._drop_failed(alive, node, tokens)
            ids[alive, depth], nodes[alive, depth] = tokens, node
            counts[alive] += 1
            child = self._child(alive, node, tokens)
            goes_on = child >= 0
            alive, node, tokens = alive[goes_on], child[goes_on], tokens[goes_on]
            if not len(alive):
                break
            self._advance(alive, tokens)
            # `_advance` may have failed more of them.
            alive, node, _ = self._drop_failed(alive, node, tokens)
        good = counts > 0
        good[list(self.failed)] = False
        return Tokens(self._lines[good], ids[good], counts[good], nodes[good])

    def by_line(self) -> NDArray[np.int64]:
        """Return the model's token after each token of each sequence, shape ``[n, width + 1]``."""
        counts = self._drafts.counts
        node = np.arange(self._drafts.tokens.shape[1] + 1)
        # Clipped to the sequence's own logits; entries beyond its drafts are masked below.
        index = self._first[:, None] + np.minimum(node, counts[:, None])
        said: NDArray[np.int64] = np.where(node <= counts[:, None], self.said[index], -1)
        return said

    def _drop_failed(
        self, alive: NDArray[np.int64], node: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        if not self.failed:
            return alive, node, tokens
        healthy = ~np.isin(alive, list(self.failed))
        return alive[healthy], node[healthy], tokens[healthy]

    def _child(
        self, alive: NDArray[np.int64], node: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the child of each node whose draft equals the model's token; -1 for none."""
        drafts = self._drafts
        of = np.arange(drafts.tokens.shape[1])
        parents = of - 1 if drafts.parents is None else drafts.parents[alive]
        # Parents count drafts from 0; nodes count the last token as 0.
        same = (drafts.tokens[alive] == tokens[:, None]) & (parents == node[:, None] - 1)
        same &= of < drafts.counts[alive][:, None]
        child: NDArray[np.int64] = np.where(same.any(1), same.argmax(1) + 1, -1)
        return child

    def _advance(self, alive: NDArray[np.int64], tokens: NDArray[np.int64]) -> None:
        """Notify processors of accepted tokens, before they see the next logits."""
        which = np.flatnonzero(self._is_processed[alive])
        if len(which):
            lost = self._processors.advance(self._row[alive[which]], tokens[which].astype(np.int32))
            self._fail(alive[which], lost)

    def _fail(self, lines: NDArray[np.int64], faults: dict[int, Fault]) -> None:
        self.failed.update({int(lines[i]): fault for i, fault in faults.items()})

    def _next(
        self, alive: NDArray[np.int64], node: NDArray[np.int64], depth: int
    ) -> NDArray[np.int64]:
        """Return the model's token after each of these nodes."""
        index = self._first[alive] + node
        self.failed.update(dict.fromkeys(alive[~self.is_finite[index]].tolist(), NOT_FINITE))
        tokens: NDArray[np.int64] = self.said[index]
        special = np.flatnonzero(~self._is_plain[alive])
        if len(special):
            tokens[special] = self._choose(alive[special], index[special], node[special], depth)
            self.said[index] = tokens
        return tokens

    def _choose(
        self,
        lines: NDArray[np.int64],
        index: NDArray[np.int64],
        node: NDArray[np.int64],
        depth: int,
    ) -> NDArray[np.int64]:
        """As ``_next``, for sequences with processors or with sampled drafts."""
        row = self._row[lines]
        # A gathered copy: processors change logits in place, and the originals are needed again.
        gathered = torch.from_numpy(index)
        logits = self._logits[gathered]
        if self._is_processed[lines].any():
            again: Callable[[], torch.Tensor] = lambda: self._logits[gathered]  # noqa: E731
            self._fail(lines, self._processors.apply(logits, row, again))
        positions = self._starts[lines] + depth + 1
        is_bad = np.isin(lines, list(self.failed))
        drafts = self._drafts
        # After the last draft of a chain there is nothing to verify: its token is sampled.
        is_drawn = (drafts.source[lines] >= 0) & (node < drafts.counts[lines]) & ~is_bad
        tokens, best = self._choice.tokens(logits, row, positions, is_bad | is_drawn)
        chosen: NDArray[np.int64] = tokens.numpy()
        is_finite = torch.isfinite(best).numpy()
        for line in lines[~is_finite & ~is_bad].tolist():
            self.failed[line] = NOT_FINITE
        drawn = np.flatnonzero(is_drawn & is_finite)
        if len(drawn):
            chosen[drawn] = self._reject(lines[drawn], logits, drawn, positions[drawn], depth)
        return chosen

    def _reject(
        self,
        lines: NDArray[np.int64],
        logits: torch.Tensor,
        at: NDArray[np.int64],
        positions: NDArray[np.int64],
        depth: int,
    ) -> NDArray[np.int64]:
        """Apply rejection sampling: accept sampled drafts, or sample from the residual p - q."""
        drafts, row = self._drafts, self._row[lines]
        if drafts.probs is None:
            raise ValueError("sampled drafts have no probabilities")
        p = self._choice.probabilities(logits[torch.from_numpy(at)], row)
        q = drafts.probs[torch.from_numpy(drafts.source[lines]), depth].double()
        tokens: NDArray[np.int64] = drafts.tokens[lines, depth].astype(np.int64)
        index = torch.from_numpy(tokens).unsqueeze(-1)
        q_x, p_x = q.gather(-1, index).squeeze(-1), p.gather(-1, index).squeeze(-1)
        random = torch.from_numpy(uniform(self._rows.seed[row], positions, ACCEPT))
        # Accepted with probability min(1, p / q), without a division.
        rejected = np.flatnonzero(((random * q_x >= p_x) | (q_x <= 0.0)).numpy())
        if len(rejected):
            these = torch.from_numpy(rejected)
            residual = (p[these] - q[these]).clamp_(min=0.0)
            # A residual that rounding makes zero means that p equals q.
            is_zero = residual.sum(-1) <= 0.0
            residual[is_zero] = p[these][is_zero]
            drawn = self._choice.draw(residual, row[rejected], positions[rejected])
            tokens[rejected] = drawn.numpy()
        return tokens
