"""Checks what drafters and controllers answer: refuse, never repair; lays it out for a step."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.state.step_batch import DraftLines
from gatewayd_hooks.speculation import Drafts

_SUM_TOLERANCE = 1e-3


def check_decision(asked: NDArray[np.int64], limits: NDArray[np.int64], budget: int) -> bool:
    """Verify how many drafts a controller gives.

    Args:
        asked: its answer.
        limits: what each row can use, shape ``[n]``.
        budget: for all of them.

    Returns:
        Whether it gives any.

    Raises:
        ValueError: it breaks a rule, which the message names.
    """
    if asked.shape != limits.shape or asked.dtype.kind not in "iu":
        _refuse(f"decided {asked.dtype} of shape {asked.shape} for {len(limits)} rows")
    if not asked.any():
        return False
    if (asked < 0).any() or (asked > np.maximum(limits, 0)).any():
        _refuse("gave a row fewer drafts than none or more than it can use")
    if int(asked.sum()) > budget:
        _refuse(f"gave {int(asked.sum())} drafts, over the budget of {budget}")
    return True


def check_drafts(
    drafts: Drafts, limits: NDArray[np.int64], is_fixed: NDArray[np.bool_], vocab_size: int
) -> None:
    """Verify a drafter's guesses.

    Args:
        drafts: its answer.
        limits: drafts that each row was to have at most, shape ``[n]``.
        is_fixed: rows whose drafts are chosen, whatever they were drawn from, shape ``[n]``.
        vocab_size: of the model.

    Raises:
        ValueError: they break a rule, which the message names.
    """
    tokens, counts, parents = drafts.tokens, drafts.counts, drafts.parents
    n = len(limits)
    if tokens.ndim != 2 or len(tokens) != n or counts.shape != (n,):
        _refuse(f"guessed tokens {tokens.shape} and counts {counts.shape} for {n} rows")
    if tokens.dtype.kind not in "iu" or counts.dtype.kind not in "iu":
        _refuse("guessed what is no integer")
    if (counts < 0).any() or (counts > np.minimum(limits, tokens.shape[1])).any():
        _refuse("guessed more for a row than was asked for, or fewer than none")
    own = np.arange(tokens.shape[1]) < counts[:, None]
    if ((tokens < 0) | (tokens >= vocab_size))[own].any():
        _refuse(f"guessed a token that is not from 0 to {vocab_size - 1}")
    if parents is not None:
        if parents.shape != tokens.shape or parents.dtype.kind not in "iu":
            _refuse(f"named parents {parents.shape} of tokens {tokens.shape}")
        if ((parents < -1) | (parents >= np.arange(tokens.shape[1])))[own].any():
            _refuse("named a parent that does not stand before its child")
        if drafts.probs is not None:
            _refuse("drew the tokens of a tree; only chains may be drawn")
    if drafts.probs is not None:
        _check_probs(drafts.probs, own & ~is_fixed[:, None], vocab_size)


def drafts_by_line(
    num_lines: int,
    lines: NDArray[np.int64],
    counts: NDArray[np.int64],
    drafts: Drafts,
    is_fixed: NDArray[np.bool_],
) -> DraftLines:
    """Drafts of some lines of a step as those of all.

    Args:
        num_lines: of the step.
        lines: that have any, shape ``[n]``.
        counts: of each, shape ``[n]``.
        drafts: shape ``[n, most]``.
        is_fixed: whose drafts are kept only where they are the model's choice, shape ``[n]``.
    """
    width = int(counts.max())
    own = np.arange(width) < counts[:, None]
    all_counts = np.zeros(num_lines, np.int64)
    all_counts[lines] = counts
    tokens = np.zeros((num_lines, width), np.int32)
    tokens[lines] = np.where(own, drafts.tokens[:, :width], 0)
    parents = None
    if drafts.parents is not None:
        parents = np.full((num_lines, width), -1, np.int32)
        parents[lines] = np.where(own, drafts.parents[:, :width], -1)
    source = np.full(num_lines, -1, np.int64)
    if drafts.probs is not None:
        source[lines] = np.where(is_fixed, -1, np.arange(len(lines)))
    return DraftLines(all_counts, tokens, parents, drafts.probs, source)


def _check_probs(probs: torch.Tensor, drawn: NDArray[np.bool_], vocab_size: int) -> None:
    if tuple(probs.shape) != (*drawn.shape, vocab_size):
        _refuse(f"said probabilities {tuple(probs.shape)} of tokens {drawn.shape}")
    if not drawn.any():
        return
    said = probs[torch.from_numpy(drawn)]
    off = float((said.sum(-1) - 1).abs().max())
    # Written so that a NaN fails it.
    if not (off <= _SUM_TOLERANCE and float(said.min()) >= 0.0):
        _refuse("said probabilities that are negative or do not add up to 1")


def as_chosen(drafts: Drafts, is_chain: NDArray[np.bool_]) -> Drafts:
    """The same as if they had been chosen, of some rows nothing but a chain.

    Verified by what the model would say, drafts may come from wherever they do.

    Args:
        drafts: of some rows.
        is_chain: rows of which the drafts that follow one another from the last token on are
            kept, shape ``[n]``.
    """
    drafts = drafts._replace(probs=None)
    if drafts.parents is None:
        return drafts
    width = drafts.parents.shape[1]
    follows = drafts.parents == np.arange(width) - 1
    reach = np.cumprod(follows, axis=1).sum(1)
    counts = np.where(is_chain, np.minimum(drafts.counts, reach), drafts.counts)
    # Where all are chains, parents are not needed.
    return drafts._replace(
        counts=counts, parents=None if (reach >= counts).all() else drafts.parents
    )


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
