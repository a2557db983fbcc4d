"""Measurement of a KV compression on one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gatewayd_engine.attention.compaction_queries import (
    Ask,
    CompactionQueries,
    check_compacted,
    check_plan,
)
from gatewayd_engine.kv.compacted_prefix import CompactedPrefix
from gatewayd_engine.kv.key_biases import bias_pages, write_front
from gatewayd_engine.kv.pool import KvPool
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_engine.process.config import EngineConfig, EngineConfigError
from gatewayd_engine.speculation.draft_heads import read_heads
from gatewayd_engine.speculation.draft_models import DraftTarget
from gatewayd_engine.state.sequence import ALL_EXACT, CompressionState
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.kv_compression import Compacted, Compacts, Selects
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind

_AT_LEAST = "at_least"
"""Setting of the built-in strategies: the shortest context that they compress."""


@dataclass(slots=True)
class CompressedRow:
    """KV compression columns of a batch with one row; see ``RunningBatch``."""

    exact_until: NDArray[np.int32] = field(default_factory=lambda: np.full(1, ALL_EXACT, np.int32))
    decodes_from: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))
    followed: NDArray[np.int64] = field(default_factory=lambda: np.full(1, -1, np.int64))
    follower: Any = None
    known: dict[int, CompressionState] = field(default_factory=dict)


class MeasuredCompression:
    """A KV compression under measurement; faults of the strategy are raised, not tolerated.

    Attributes:
        selecting: selector for the attention, see
            ``attention.kv_selection.SelectingCompression``; None if the strategy does not select.
        row: batch columns of the sequence.
        note: setting that differs from its default; empty for none.
        held_pages, total_pages: pages of all sequences with and without compression.
    """

    def __init__(self, strategy: Any, shape: AttentionShape, pool: KvPool, note: str) -> None:  # noqa: ANN401
        self._strategy = strategy
        self._shape = shape
        self._pool = pool
        self._selector = CountingSelector(strategy, shape)
        self.selecting: Any | None = self._selector if isinstance(strategy, Selects) else None
        self.row = CompressedRow()
        self.note = note
        self.held_pages = self.total_pages = 0

    def close(self) -> None:
        """Close the strategy."""
        self._strategy.close()

    def fail(self, error: BaseException) -> None:
        """See ``attention.kv_selection.SelectingCompression``."""
        raise error

    @property
    def held_fraction(self) -> float:
        """Fraction of the KV cache's bytes that remains after compaction."""
        return self.held_pages / self.total_pages if self.total_pages else 1.0

    @property
    def read_fraction(self) -> float:
        """Fraction of keys and values that decoding reads."""
        selected = self._selector.read / self._selector.total if self._selector.total else 1.0
        return selected if self.selecting is not None else self.held_fraction

    def record_sequence(self, num_tokens: int, front: CompactedPrefix | None) -> None:
        """Count the pages of a finished sequence of ``num_tokens`` tokens."""
        pages = -(-num_tokens // self._pool.page_size)
        self.total_pages += pages
        self.held_pages += pages
        if front is not None:
            # Compaction releases the pages of the shift and allocates some for biases.
            self.held_pages -= front.shift // self._pool.page_size - len(front.bias)
            # The next sequence reads biases as masked KV records, where their bits may be NaN.
            self._pool.data[list(front.bias)] = 0

    def compact(
        self, ids: list[int], table: NDArray[np.int64], hidden: Callable[..., object]
    ) -> CompactedPrefix | None:
        """Compact the prefix of a computed prompt, as an engine does.

        Args:
            ids: of the prompt.
            table: block table of the sequence, shape ``[pages]``.
            hidden: computes hidden states of token ids at positions with an attention.

        Returns:
            The compacted prefix, in the first pages of the table; None if nothing is compacted.

        Raises:
            ValueError: the strategy's plan or result is invalid.
        """
        if not isinstance(self._strategy, Compacts):
            return None
        size, count = self._pool.page_size, len(ids)
        lengths = np.array([count])
        # There is one sequence, so at most one plan is carried out.
        for plan in self._strategy.plan(np.zeros(1, np.int64), lengths, lengths):
            check_plan(plan, count, size)
            covered, kept = plan.covered, plan.kept
            fresh = kept // size + bias_pages(self._pool, kept)
            # Without fewer pages there is nothing to gain.
            if fresh >= covered // size:
                continue
            last = min(plan.queries, count)
            pages = table[: -(-count // size)].tolist()
            # The pages of the prompt are read for all layers before the first of them is
            # overwritten.
            attend = CompactionQueries(
                self._shape, self._pool, pages, count, covered, self._ask(kept)
            )
            hidden(torch.tensor(ids[-last:]), torch.arange(count - last, count), attend)
            write_front(self._pool, pages[:fresh], kept, attend.found)
            return CompactedPrefix(covered, kept, tuple(pages[kept // size : fresh]))
        return None

    def _ask(self, kept: int) -> Ask:
        def ask(
            layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> Compacted:
            found: Compacted = self._strategy.compact(layer, queries, keys, values, kept)
            check_compacted(found, keys, kept)
            return found

        return ask


class CountingSelector:
    """Wrapper of a selecting strategy that counts selected keys.

    Layers with sliding windows are not counted: there is no selection there.

    Attributes:
        read, total: keys read, and keys in context, of all heads and layers in all steps.
    """

    def __init__(self, strategy: Any, shape: AttentionShape) -> None:  # noqa: ANN401 - of the kind
        self.admit, self.observe = strategy.admit, getattr(strategy, "observe", None)
        self._strategy = strategy
        self._each = shape.num_kv_heads
        self._layers = sum(not window for window in shape.windows)
        self.read = self.total = 0

    def budgets(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """See ``Selects``."""
        found: NDArray[np.int64] = self._strategy.budgets(rows, lengths)
        total = int(lengths[0]) * self._each * self._layers
        # Everything counts as read until ``select`` returns a selection for a layer.
        self.total += total
        self.read += total
        return found

    def select(
        self,
        layer: int,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        budgets: NDArray[np.int64],
    ) -> torch.Tensor | None:
        """See ``Selects``."""
        found: torch.Tensor | None = self._strategy.select(layer, rows, lengths, budgets)
        if found is not None:
            self.read -= int(lengths[0]) * self._each - int((found >= 0).sum())
        return found


def open_compression(
    config: EngineConfig,
    host: PluginHost,
    spec: ModelSpec,
    pool: KvPool,
    resources: EngineResources,
    prompt: int,
) -> MeasuredCompression | None:
    """Open the configured KV compression; None for full attention. The caller closes it.

    Args:
        config: of the engine.
        host: loads the strategy.
        spec: of the model.
        pool: KV pool of the sequence.
        resources: passed to the strategy.
        prompt: length of the shortest prompt; 0 if contexts need not be long enough.

    Raises:
        EngineConfigError: the strategy does not support the model.
        PluginError: it cannot be loaded.
    """
    choice, kind = config.kv_compression, Kind.KV_COMPRESSION
    if choice is None:
        return None
    fields = getattr(host.info(kind, choice.name).config_type, "model_fields", {})
    settings, note = _with_reachable_length(choice.settings, fields, prompt)
    strategy = host.strategy(kind, choice.name, settings)
    target = DraftTarget(spec.hidden_size, torch.float32)
    try:
        strategy.open(
            replace(
                resources,
                kv_shape=spec.attention.kv_shape,
                read_heads=lambda setting, name: read_heads(
                    setting, name, Path(config.model), target, spec.vocab_size, config.device
                ),
            )
        )
    except BaseException as error:
        # It may have started threads or opened files before it failed.
        strategy.close()
        if not isinstance(error, ValueError):
            raise
        raise EngineConfigError(
            f"kv_compression {choice.name} cannot serve this model: {error}"
        ) from error
    return MeasuredCompression(strategy, spec.attention, pool, note)


def _with_reachable_length(
    settings: Mapping[str, Any], fields: Mapping[str, Any], prompt: int
) -> tuple[Mapping[str, Any], str]:
    """Lower the minimum context length to ``prompt`` unless it is set, and describe the change."""
    known = fields.get(_AT_LEAST)
    default = getattr(known, "default", None)
    if _AT_LEAST in settings or not isinstance(default, int) or not 0 < prompt < default:
        return settings, ""
    # The setting's own lower bound, as the configuration would enforce it.
    least = max((getattr(bound, "ge", 0) for bound in getattr(known, "metadata", ())), default=0)
    if prompt < least:
        return settings, ""
    note = f"{_AT_LEAST} is {default} by default, more than these prompts have: it was {prompt}"
    return {**settings, _AT_LEAST: prompt}, note
