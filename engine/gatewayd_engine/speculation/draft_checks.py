"""Validation of drafts and controller decisions: reject, never repair."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.state.step_batch import BatchDrafts
from gatewayd_hooks.speculation import Drafts

# Float32 probabilities of a large vocabulary do not add up to 1 exactly.
_SUM_TOLERANCE = 1e-3


def check_decision(asked: NDArray[np.int64], limits: NDArray[np.int64], budget: int) -> bool:
    """Validate the numbers of draft tokens that a controller has decided on.

    Args:
        asked: the decision, shape ``[n]``.
        limits: maximum of each row, shape ``[n]``.
        budget: maximum of all rows together.

    Returns:
        Whether any row is to be drafted for.

    Raises:
        ValueError: the decision breaks a rule, which the message names.
    """
    if asked.shape != limits.shape or asked.dtype.kind not in "iu":
        _refuse(f"decided {asked.dtype} of shape {asked.shape} for {len(limits)} rows")
    if not asked.any():
        return False
    if (asked < 0).any() or (asked > np.maximum(limits, 0)).any():
        _refuse("decided on a negative number of drafts for a row, or on more than it can use")
    if int(asked.sum()) > budget:
        _refuse(f"decided on {int(asked.sum())} drafts, over the budget of {budget}")
    return True


def check_drafts(
    drafts: Drafts, limits: NDArray[np.int64], is_fixed: NDArray[np.bool_], vocab_size: int
) -> None:
    """Validate a drafter's proposal.

    Args:
        drafts: the proposal.
        limits: maximum of draft tokens of each row, shape ``[n]``.
        is_fixed: rows whose drafts are deterministic, regardless of ``probs``, shape ``[n]``.
        vocab_size: of the model.

    Raises:
        ValueError: the proposal breaks a rule, which the message names.
    """
    tokens, counts, parents = drafts.tokens, drafts.counts, drafts.parents
    n = len(limits)
    if tokens.ndim != 2 or len(tokens) != n or counts.shape != (n,):
        _refuse(f"proposed tokens {tokens.shape} and counts {counts.shape} for {n} rows")
    if tokens.dtype.kind not in "iu" or counts.dtype.kind not in "iu":
        _refuse("proposed tokens or counts that are not integers")
    if (counts < 0).any() or (counts > np.minimum(limits, tokens.shape[1])).any():
        _refuse("proposed more drafts for a row than its limit, or a negative number")
    # Entries beyond a row's count are undefined, and not checked.
    own = np.arange(tokens.shape[1]) < counts[:, None]
    if ((tokens < 0) | (tokens >= vocab_size))[own].any():
        _refuse(f"proposed a token that is not from 0 to {vocab_size - 1}")
    if parents is not None:
        if parents.shape != tokens.shape or parents.dtype.kind not in "iu":
            _refuse(f"returned parents {parents.shape} of tokens {tokens.shape}")
        # Parents first, so that ancestors and depths are computed in one pass.
        if ((parents < -1) | (parents >= np.arange(tokens.shape[1])))[own].any():
            _refuse("returned a parent that does not precede its child")
        if drafts.probs is not None:
            _refuse("returned probs for a tree; only chains may be sampled")
    if drafts.probs is not None:
        _check_probs(drafts.probs, own & ~is_fixed[:, None], vocab_size)


def scatter_drafts(
    num_entries: int,
    entries: NDArray[np.int64],
    counts: NDArray[np.int64],
    drafts: Drafts,
    is_fixed: NDArray[np.bool_],
) -> BatchDrafts:
    """Scatter the drafts of some batch entries to all entries of a step.

    Args:
        num_entries: number of entries of the step.
        entries: entries with drafts, shape ``[n]``.
        counts: number of drafts of each, shape ``[n]``.
        drafts: the proposal, shape ``[n, most]``.
        is_fixed: entries whose drafts are accepted only if they equal the model's token, shape
            ``[n]``.
    """
    width = int(counts.max())
    own = np.arange(width) < counts[:, None]
    all_counts = np.zeros(num_entries, np.int64)
    all_counts[entries] = counts
    tokens = np.zeros((num_entries, width), np.int32)
    tokens[entries] = np.where(own, drafts.tokens[:, :width], 0)
    parents = None
    if drafts.parents is not None:
        parents = np.full((num_entries, width), -1, np.int32)
        parents[entries] = np.where(own, drafts.parents[:, :width], -1)
    source = np.full(num_entries, -1, np.int64)
    if drafts.probs is not None:
        source[entries] = np.where(is_fixed, -1, np.arange(len(entries)))
    return BatchDrafts(all_counts, tokens, parents, drafts.probs, source)


def _check_probs(probs: torch.Tensor, drawn: NDArray[np.bool_], vocab_size: int) -> None:
    if tuple(probs.shape) != (*drawn.shape, vocab_size):
        _refuse(f"returned probs {tuple(probs.shape)} of tokens {drawn.shape}")
    if not drawn.any():
        return
    sampled = probs[torch.from_numpy(drawn)]
    off = float((sampled.sum(-1) - 1).abs().max())
    # A NaN fails this comparison.
    if not (off <= _SUM_TOLERANCE and float(sampled.min()) >= 0.0):
        _refuse("returned probs that are negative or do not sum to 1")


def as_deterministic(drafts: Drafts, is_chain: NDArray[np.bool_]) -> Drafts:
    """Return drafts without ``probs``, and some rows' trees reduced to chains.

    When drafts are verified against the model's own tokens, it does not matter how they were
    chosen.

    Args:
        drafts: drafts of some rows.
        is_chain: rows of which only drafts that form a chain from the last token on are kept,
            shape ``[n]``.
    """
    drafts = drafts._replace(probs=None)
    if drafts.parents is None:
        return drafts
    width = drafts.parents.shape[1]
    follows = drafts.parents == np.arange(width) - 1
    # Length of each row's leading chain.
    reach = np.cumprod(follows, axis=1).sum(1)
    counts = np.where(is_chain, np.minimum(drafts.counts, reach), drafts.counts)
    # If all are chains, parents are not needed.
    return drafts._replace(
        counts=counts, parents=None if (reach >= counts).all() else drafts.parents
    )


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
