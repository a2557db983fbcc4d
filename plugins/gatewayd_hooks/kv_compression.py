"""KV compression: fewer keys and values for long contexts, at the cost of what is left out.

Two ways, of which a strategy has one or both. ``Selects``: all is kept, but most decoding steps
attend to some places only. ``Compacts``: a few keys and values, each with a bias, take the place
of many, and their pages are free. Neither is exact: off is the default, and what is computed with
either is never offered to a prefix cache as what a prompt has.
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
    """Says what of a long context is attended to, or what takes its place.

    It follows ``Selects``, with ``Moves`` if it likes, ``Compacts``, or both. What it raises, and
    answers that cannot be, end compression: the step goes on with all that is kept, what is
    compacted stays so, and a fresh instance gets another chance a step later.
    """

    def open(self, resources: EngineResources) -> None:
        """Learn ``kv_shape`` and the sizes of the engine.

        Raises:
            ValueError: it cannot serve this model; one sentence that says why.
        """

    def admit(self, row: int) -> None:
        """Another sequence has this row from now on, or the same one comes back: forget.

        Who was preempted is told of when it comes back, also in the row that it had, but for those
        of whom ``Moves`` has kept something.
        """


@runtime_checkable
class Selects(Protocol):
    """Sparse decoding: all keys and values are kept, few are read.

    It is asked about sequences that decode one token; those with drafts behind it, and chunks of
    prompts, also those of one token, attend to all. So what it is shown of a sequence follows from
    its answer, and not from what was cached. A step may be computed again: the same may be asked,
    and shown, twice.
    """

    def budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many places each attends to in this step, of each layer and key head.

        Args:
            rows: that decode, shape ``[n]``.
            lengths: tokens that each has, the one that is computed included, shape ``[n]``.

        Returns:
            Shape ``[n]``; 0, and what is not less than the length, stands for all of them.
        """

    def select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        """The places that rows attend to in a layer; those that attend to all are not among them.

        A step asks for all its layers before it computes the first. Layers whose windows hide a
        part of the context attend to all that they see, and are not asked for.

        Args:
            layer: which.
            rows: shape ``[n]``.
            lengths: tokens that each has, shape ``[n]``.
            budgets: most places of each, shape ``[n]``.

        Returns:
            int64, shape ``[n, num_kv_heads, k]``: places from 0 to below the length, none twice,
            in any order, the newest always among them; -1 behind them where there are fewer. None
            for all that there are.
        """

    def observe(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        weights: torch.Tensor,
        places: torch.Tensor | None,
    ) -> None:
        """Look at what was attended to.

        Args:
            layer: which.
            rows: shape ``[n]``.
            lengths: tokens that each has, shape ``[n]``.
            weights: after softmax, float32 or bfloat16. With ``places`` None of all that there
                are, shape ``[n, num_heads, longest]``, 0 beyond a row's length; else of those that
                were selected, shape ``[n, num_heads, k]``, 0 where there is none. Heads that share
                a key head stand side by side. Only to be read, and only during the call.
            places: what ``select`` gave, shape ``[n, num_kv_heads, k]``.
        """


@runtime_checkable
class Moves(Protocol):
    """Selection that goes on where it was with a sequence that was swapped out, beside ``Selects``.

    Without it, and after a preemption by which all is computed again, it begins afresh.
    """

    def leave(self, row: int) -> object:
        """A sequence leaves its row, and may come back: what is known of it, for itself alone."""

    def enter(self, row: int, known: object) -> None:
        """It is back, maybe in another row; in place of ``admit``.

        Args:
            row: that it has now.
            known: what ``leave`` gave.
        """


class Compaction(NamedTuple):
    """What is to become fewer of a sequence.

    Attributes:
        row: whose.
        covered: tokens from its beginning that are looked at, a multiple of the page size.
        kept: keys and values that take their place, a smaller multiple of it.
        queries: latest tokens of the prompt whose queries are shown; they are computed again, so
            that they do not depend on what was cached.
    """

    row: int
    covered: int
    kept: int
    queries: int = 256


class Compacted(NamedTuple):
    """Keys and values that stand for others.

    Attributes:
        keys: shape ``[num_kv_heads, kept, head_dim]``.
        bias: what is added to the scores of each, after scaling, shape ``[num_kv_heads, kept]``.
        values: shape ``[num_kv_heads, kept, head_dim]``.
    """

    keys: torch.Tensor
    bias: torch.Tensor
    values: torch.Tensor


@runtime_checkable
class Compacts(Protocol):
    """Few keys and values in place of many.

    It happens between two steps, once the last chunk of a prompt has landed.
    """

    def plan(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        prompt_lens: NDArray[np.int64],
    ) -> Sequence[Compaction]:
        """Which sequences are compacted now.

        It follows from the lengths of prompts alone: a sequence that is computed again is
        compacted at the same place, and its answer is the same.

        Args:
            rows: whose prompts have landed since it was asked last, shape ``[n]``.
            lengths: tokens whose keys and values each has, shape ``[n]``.
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
        """Make fewer of a layer's keys and values.

        Args:
            layer: which.
            queries: of the prompt's latest tokens, after rotary, those that share a key head
                together, shape ``[num_kv_heads, n, head_dim]``. Scores are their products with
                keys, times ``KvShape.scale``.
            keys: after rotary, shape ``[num_kv_heads, covered, head_dim]``.
            values: shape ``[num_kv_heads, covered, head_dim]``.
            kept: how many are wanted, at most ``covered``.
        """
