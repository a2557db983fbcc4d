"""Basic operations of a decoder layer in plain torch: linear, RMS norm, gate, feed-forward.

Plain callables, not ``nn.Module``: nothing is trained here, and at batch 1 on a CPU a step spends
as much time on dispatch as on arithmetic. All matrix products go through a ``LinearOp``, those of
experts included; quantized ones are in ``linears``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from gatewayd_engine.kernels.activation import activation
from gatewayd_engine.model.batch_invariance import BatchInvariantMode, row_chunks

_PADDING = 16
"""Padding columns of a packed weight. Rows a power of two apart share cache sets: without padding
a matrix product over 2,048 columns takes half as long again."""
WIDENED = 3 << 18
"""Elements of a weight that are converted to float64 at a time, so that they stay in the cache."""


class LinearOp(Protocol):
    """Linear layer: a weight in a device-specific form, with an optional bias."""

    @property
    def nbytes(self) -> int:
        """Size of the weight and the bias in bytes."""

    @property
    def rounds_inputs(self) -> bool:
        """Whether the input is quantized before the product.

        A value halfway between two codes is then sensitive to the last bit of its computation.
        """

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map ``[n, in]`` to ``[n, out]``, a new tensor or ``out``."""

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """Add the output for ``x``, ``[n, in]``, onto ``[n, out]`` in place, or defer the addition.

        Returns:
            The output still to be added; None once it has been.
        """


class Linear(BatchInvariantMode):
    """``x @ weight.T + bias``, weight of shape ``[out, in]``; batch-invariant in float64.

    On a CPU the weight is stored transposed, with padded rows: on two-core AVX-512 machines that
    measured fastest from 1 to 64 rows, and at 8 rows twice as fast as the layout of checkpoints.
    """

    __slots__ = ("_bias", "_weight")
    rounds_inputs = False

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        self._bias = bias
        self._weight = _pack(weight) if weight.device.type == "cpu" else weight.t()

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        if self.is_steady:
            return self._steadily(x, out)
        if self._bias is None:
            return torch.mm(x, self._weight, out=out)
        return torch.addmm(self._bias, x, self._weight, out=out)

    def _steadily(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        if out is None:
            out = x.new_empty(len(x), self._weight.shape[1])
        # float64 sums depend on the batch, too, but in bits that rounding to the model's dtype
        # nearly always removes (ADR 0035).
        wide, step = x.double(), max(1, WIDENED // self._weight.shape[0])
        for begin in range(0, self._weight.shape[1], step):
            some = slice(begin, begin + step)
            out[:, some] = torch.mm(wide, self._weight[:, some].double())
        return out if self._bias is None else out.add_(self._bias)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        if self.is_steady:
            # Computed in float64, so the addition cannot be fused with the product.
            onto.add_(self(x))
            return None
        onto.addmm_(x, self._weight)
        if self._bias is not None:
            onto.add_(self._bias)
        return None


def _pack(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight transposed into padded memory, shape ``[in, out]``."""
    rows, columns = weight.shape
    packed = weight.new_empty(columns, rows + _PADDING)[:, :rows]
    return packed.copy_(weight.t())


class RMSNorm:
    """RMS norm over the last dimension, scaled by the weight, computed in float32.

    Computed as ``x / hypot(|x|, sqrt(n * eps)) * (weight * sqrt(n))``, which is equivalent to
    torch's composite ``rms_norm`` and takes half its time on a CPU at batch 1.

    Attributes:
        weight: float32, the offset added.
    """

    __slots__ = ("_floor", "_weight", "weight")

    def __init__(self, weight: torch.Tensor, eps: float, offset: float = 0.0) -> None:
        """Initialise from the stored weight.

        Args:
            weight: shape ``[n]``, or ``[heads, n]`` for a norm of each head.
            eps: added to the mean square.
            offset: added to the weight.
        """
        size = weight.shape[-1]
        self.weight = (weight.float() + offset).contiguous()
        self._weight = self.weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Add ``delta`` onto ``x``, ``[..., n]``, in place; return it normalised, as a copy."""
        if delta is not None:
            x.add_(delta)
        # Fewer operations than below: at batch 1 dispatch costs as much as arithmetic.
        if x.dtype == torch.float32:
            length = torch.linalg.vector_norm(x, 2, -1, True)
            return x.div(length.hypot_(self._floor)).mul_(self._weight)
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        return x.div(length.hypot_(self._floor)).mul_(self._weight).to(x.dtype)


class HeadNorm:
    """RMS norm of each head, in place; ``weight`` has shape ``[heads, head_dim]``."""

    __slots__ = ("_norm",)

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._norm = RMSNorm(weight, eps)

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight, float32."""
        return self._norm.weight

    def __call__(self, heads: torch.Tensor) -> None:
        """Normalise ``[n, heads, head_dim]`` in place."""
        heads.copy_(self._norm(heads))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ProjectionNorm:
    """RMS norms of all queries and of all keys of a token, in place.

    Attributes:
        query, key: norms of one head that is as wide as all of them.
        num_heads: number of query heads.
        weight: of both, float32, shape ``[heads, head_dim]``, queries first.
    """

    query: Callable[[torch.Tensor], object]
    key: Callable[[torch.Tensor], object]
    num_heads: int
    weight: torch.Tensor

    def __call__(self, heads: torch.Tensor) -> None:
        """Normalise ``[n, heads, head_dim]``, queries first, in place."""
        self.query(heads[:, : self.num_heads].flatten(1).unsqueeze(1))
        self.key(heads[:, self.num_heads :].flatten(1).unsqueeze(1))


class Unnormed:
    """Stands for a norm of the residual stream in layers that have none before a part."""

    def __call__(self, x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Add ``delta`` onto ``x``, ``[n, hidden]``, in place; return ``x``."""
        return x if delta is None else x.add_(delta)


class Gated(BatchInvariantMode):
    """Gated activation ``act(gate) * up``.

    Args:
        name: of the activation function, as in ``ModelSpec``.
    """

    __slots__ = ("_act", "_is_copied")

    def __init__(self, name: str) -> None:
        super().__init__()
        self._act = activation(name)
        # Torch has two implementations and uses the other one for contiguous input.
        self._is_copied = name == "gelu"

    def __call__(self, joined: torch.Tensor) -> torch.Tensor:
        """Map gate and up projections, ``[n, 2 * size]``, to a new ``[n, size]``."""
        gate, up = joined.chunk(2, -1)
        if not self.is_steady:
            return self._act(gate).mul_(up)
        gated = [
            self._act(some.contiguous() if self._is_copied else some)
            for (some,) in row_chunks(gate)
        ]
        return (gated[0] if len(gated) == 1 else torch.cat(gated)).mul_(up)


class ClampedGated(BatchInvariantMode):
    """Gated activation ``(up + 1) * gate * sigmoid(sharpness * gate)`` of clamped values.

    Args:
        limit: largest gate, and largest magnitude of ``up``.
        sharpness: see above.
    """

    __slots__ = ("_limit", "_sharpness")

    def __init__(self, limit: float, sharpness: float) -> None:
        super().__init__()
        self._limit = limit
        self._sharpness = sharpness

    def __call__(self, joined: torch.Tensor) -> torch.Tensor:
        """Map gate and up projections, ``[n, 2 * size]``, to a new ``[n, size]``."""
        gate, up = joined.chunk(2, -1)
        gate = gate.clamp(max=self._limit)
        scaled = gate * self._sharpness
        # In float64 as in ``router``, whose sigmoids have to be batch-invariant, too.
        weight = scaled.double().sigmoid_().to(gate.dtype) if self.is_steady else scaled.sigmoid_()
        return (up.clamp(-self._limit, self._limit) + 1).mul_(gate.mul_(weight))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FeedForward:
    """Gated feed-forward part: ``down(act(gate(x)) * up(x))`` with gate and up fused.

    Args:
        gate_up: fused gate and up projections.
        down: projection back to the residual stream.
        gated: ``act(gate) * up`` of the output of ``gate_up``.

    Attributes:
        entry: ``gate_up``, the only consumer of the part's input.
        down: as given.
    """

    entry: LinearOp
    down: LinearOp
    _gated: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""
        return self.down(self._gated(self.entry(x)))

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        return self.down.add_to(onto, self._gated(self.entry(x)))
