"""KV compaction by attention matching: plans it, and fits keys and values head by head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gatewayd_hooks.kv_compression import Compacted, Compaction
from gatewayd_kvc_matching.fitting import fit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gatewayd_hooks.resources import EngineResources
    from gatewayd_kvc_matching.config import MatchingConfig


class Matching:
    """Attention matching, arXiv 2602.16284."""

    def __init__(self, config: MatchingConfig) -> None:
        self._config = config
        self._page_size = 1
        self._scale = 1.0

    def open(self, resources: EngineResources) -> None:
        """See ``KvCompressionStrategy``.

        Raises:
            ValueError: the model has a softcap or sliding windows.
        """
        shape = resources.kv_shape
        if shape is None:
            raise ValueError("the engine does not provide kv_shape")
        if shape.softcap is not None:
            raise ValueError("this model bounds its scores (softcap), which is not supported")
        if any(shape.windows):
            raise ValueError("this model has sliding windows, which is not supported")
        self._page_size = resources.page_size
        self._scale = shape.scale

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def admit(self, row: int) -> None:
        """Do nothing: there is no state per row."""

    def plan(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        prompt_lens: NDArray[np.int64],
    ) -> Sequence[Compaction]:
        """See ``Compacts``."""
        found = []
        for row, prompt_len in zip(rows.tolist(), prompt_lens.tolist(), strict=True):
            covered, kept = self.sizes(prompt_len)
            if kept < covered:
                found.append(Compaction(row, covered, kept, self._config.queries))
        return found

    def sizes(self, prompt_len: int) -> tuple[int, int]:
        """Return the number of tokens to compact, and of keys that remain; whole pages."""
        config, size = self._config, self._page_size
        if prompt_len < config.at_least:
            return 0, 0
        covered = max(prompt_len - config.recent, 0) // size
        # Rounded up to a page: a short prompt may not become shorter at all.
        return covered * size, math.ceil(covered / config.ratio) * size

    def compact(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        kept: int,
    ) -> Compacted:
        """See ``Compacts``."""
        config = self._config
        found_keys, found_values = keys.new_empty(2, len(keys), kept, keys.shape[-1]).unbind()
        bias = keys.new_empty(len(keys), kept)
        # Each head has its own choice of keys, and is fitted alone.
        for head in range(len(keys)):
            fitted = fit(
                queries[head] * self._scale,
                keys[head],
                values[head],
                kept,
                greedy=config.choose == "greedy",
                ridge=config.ridge,
            )
            found_keys[head] = keys[head, fitted.places]
            found_values[head] = fitted.values
            bias[head] = fitted.bias
        return Compacted(found_keys, bias, found_values)
