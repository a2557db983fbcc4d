"""KV compression: fewer keys and values for long contexts, at the cost of accuracy.

There are two ways, of which a strategy implements one or both. ``Selects``: everything stays in the
cache, but most decode steps attend to a subset of positions (sparse attention). ``Compacts``: a few
keys and values, each with a bias, replace many, whose pages are freed. Neither is exact: off is the
default, and KV computed with either is never offered to a prefix cache as that of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources


class KvCompressionStrategy(Strategy, Protocol):
    """Chooses which positions of a long context are attended to, or what replaces them.

    It implements ``Selects``, optionally with ``Moves``, or ``Compacts``, or both. An exception or
    an invalid result ends compression: the step goes on with everything in the cache, what is
    compacted stays compacted, and a new instance is tried one step later.
    """

    def open(self, resources: EngineResources) -> None:
        """Read ``kv_shape`` and the sizes of the engine.

        Raises:
            ValueError: it does not support this model; the message is one sentence that says why.
        """

    def admit(self, row: int) -> None:
        """Reset this row's state for a new sequence, or for one that resumes.

        A preempted sequence is admitted when it resumes, also in the row that it had, except those
        whose state ``Moves`` has saved.
        """


@runtime_checkable
class Selects(Protocol):
    """Sparse decoding: all keys and values stay in the cache, few are read.

    It is called for sequences that decode one token; those with draft tokens, and prefill chunks,
    also of a single token, attend to all positions. So what it observes of a sequence depends on
    its answer, and not on what was cached. A step may be computed again: calls for the same step
    may be repeated.
    """

    def budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many positions each row attends to in this step, per layer and KV head.

        Args:
            rows: rows that decode, shape ``[n]``.
            lengths: tokens of each, including the one being computed, shape ``[n]``.

        Returns:
            Shape ``[n]``; 0, or a value not below the length, means all positions.
        """

    def select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        """Return the positions that rows attend to in a layer.

        Rows that attend to all positions are not passed. A step calls it for all layers before it
        computes the first. Sliding-window layers that do not see the whole context attend to their
        whole window and are not passed.

        Args:
            layer: index of the layer.
            rows: shape ``[n]``.
            lengths: tokens of each, shape ``[n]``.
            budgets: maximum of positions of each, shape ``[n]``.

        Returns:
            int64, shape ``[n, num_kv_heads, k]``: positions from 0 to below the length, without
            duplicates, in any order, always including the newest; padded with -1. None for all
            positions.
        """

    def observe(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        """Observe attention weights.

        Args:
            layer: index of the layer.
            rows: shape ``[n]``.
            lengths: tokens of each, shape ``[n]``.
            weights: after softmax, float32 or bfloat16. If ``places`` is None, of all positions,
                shape ``[n, num_heads, longest]``, 0 beyond a row's length; otherwise of the
                selected ones, shape ``[n, num_heads, k]``, 0 for padding. Query heads that share a
                KV head are adjacent. Read-only and valid only during the call.
            places: result of ``select``, shape ``[n, num_kv_heads, k]``.
        """


@runtime_checkable
class Moves(Protocol):
    """Optional part of ``Selects``: saves and restores the state of a sequence that is swapped out.

    Without it, and after a preemption by recomputation, selection starts from an empty state.
    """

    def leave(self, row: int) -> object:
        """Return the state of a sequence that leaves its row and may resume; it shares nothing."""

    def enter(self, row: int, known: object) -> None:
        """Restore a resumed sequence, perhaps in another row; called instead of ``admit``.

        Args:
            row: its row now.
            known: result of ``leave``.
        """


class Compaction(NamedTuple):
    """Plan for compacting one sequence.

    Attributes:
        row: row of the sequence.
        covered: tokens from its beginning that are compacted, a multiple of the page size.
        kept: number of keys and values that replace them, a smaller multiple of the page size.
        queries: number of latest prompt tokens whose queries are passed; they are computed again,
            so that they do not depend on what was cached.
    """

    row: int
    covered: int
    kept: int
    queries: int = 256


class Compacted(NamedTuple):
    """Keys and values that replace others.

    Attributes:
        keys: shape ``[num_kv_heads, kept, head_dim]``.
        bias: added to the attention scores of each, after scaling, shape ``[num_kv_heads, kept]``.
        values: shape ``[num_kv_heads, kept, head_dim]``.
    """

    keys: torch.Tensor
    bias: torch.Tensor
    values: torch.Tensor


@runtime_checkable
class Compacts(Protocol):
    """Replaces many keys and values by few.

    This happens between two steps, once the last chunk of a prompt has been computed.
    """

    def plan(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        prompt_lens: NDArray[np.int64],
    ) -> Sequence[Compaction]:
        """Return which sequences are compacted now.

        The result depends on the prompt lengths alone: a sequence that is recomputed is compacted
        at the same position, and its answer is the same.

        Args:
            rows: rows whose prompts were completed since the last call, shape ``[n]``.
            lengths: tokens of each whose keys and values are computed, shape ``[n]``.
            prompt_lens: shape ``[n]``.
        """

    def compact(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        kept: int,
    ) -> Compacted:
        """Compact the keys and values of a layer.

        Args:
            layer: index of the layer.
            queries: of the prompt's latest tokens, after rotary embedding, those that share a KV
                head together, shape ``[num_kv_heads, n, head_dim]``. Scores are their products with
                keys, times ``KvShape.scale``.
            keys: after rotary embedding, shape ``[num_kv_heads, covered, head_dim]``.
            values: shape ``[num_kv_heads, covered, head_dim]``.
            kept: how many to return, at most ``covered``.
        """
