"""Lossless folding of per-column factors into the weight that produces an input."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.offline.quantize.input_groups import InputSource
from gatewayd_engine.offline.quantize.layers import LayerTensors

Foldable = Callable[[torch.Tensor], torch.Tensor]
"""See ``Site``."""


class Folding:
    """Folds factors into a norm or into rows of a matrix.

    Args:
        checkpoint: of the model.
        before: the weight to fold into.
        tensors: current tensors of the layer.
    """

    def __init__(self, checkpoint: Checkpoint, before: InputSource, tensors: LayerTensors) -> None:
        self._spec = checkpoint.spec
        self._before = before
        self._tensors = tensors
        self._dtype = checkpoint.tensor(before.name).dtype

    def foldable(self, factors: torch.Tensor) -> torch.Tensor:
        """Return the nearest factors that can be folded exactly; see ``Site``."""
        if self._before.is_norm:
            whole, divided = self._norm(factors)
            # The factors that result once the divided norm is rounded to its stored type.
            kept = whole / (divided.float() + self._offset)
            return torch.where(self._is_kept(whole, kept), kept, 1.0)
        if not self._before.head_dim:
            return factors
        # One factor for each row of values: the geometric mean over the query heads that read it.
        return (
            self._by_row(factors)
            .log()
            .mean(1, keepdim=True)
            .exp()
            .expand(-1, self._group, -1)
            .flatten()
        )

    def apply(self, factors: torch.Tensor) -> torch.Tensor | None:
        """Divide the weight by ``factors``, which must be a result of ``foldable``.

        Returns:
            A norm's weight as it is to be stored; None for a matrix, which is quantized later.
        """
        name = self._before.name
        if self._before.is_norm:
            _, divided = self._norm(factors)
            # A factor of 1 leaves the stored weight as it is, without rounding.
            divided = torch.where(
                factors == 1.0, self._tensors.tensor(name).to(self._dtype), divided
            )
            self._tensors.replace(name, divided.float())
            return divided
        if self._before.head_dim:
            factors = self._by_row(factors)[:, 0].flatten()
        # Tensors of a layer are shared and not modified in place.
        weight = self._tensors.tensor(name).clone()
        rows = slice(self._before.begin, self._before.begin + len(factors))
        weight[rows] /= factors.unsqueeze(-1)
        self._tensors.replace(name, weight)
        return None

    @property
    def _offset(self) -> float:
        return float(self._spec.family.norm_offset)

    @property
    def _group(self) -> int:
        return self._spec.num_heads // self._spec.num_kv_heads

    def _by_row(self, factors: torch.Tensor) -> torch.Tensor:
        """View columns by the row of values they come from, ``[kv_heads, group, head_dim]``."""
        return factors.view(self._spec.num_kv_heads, self._group, self._before.head_dim)

    def _norm(self, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a norm's effective weight, and its divided weight as it is stored."""
        whole = self._tensors.tensor(self._before.name) + self._offset
        return whole, (whole / factors - self._offset).to(self._dtype)

    @staticmethod
    def _is_kept(whole: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        """Return where the division neither over- nor underflows nor involves a zero."""
        return (whole != 0) & kept.isfinite() & (kept > 0)
