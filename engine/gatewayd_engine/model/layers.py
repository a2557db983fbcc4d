"""The parts of a decoder layer that know nothing of each other.

Plain callables, not ``nn.Module``: nothing is trained here, and at batch 1 on a CPU the time of a
step is dispatch as much as arithmetic. All matrix products go through a ``LinearOp``, those of the
experts too; those of few bits are in ``linears``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from gatewayd_engine.kernels.activation import activation
from gatewayd_engine.model.batch_invariance import Unsteady, pieces

_PADDING = 16
"""Spare columns of a packed weight. Rows a power of two apart share cache sets, and a matrix
product over 2,048 columns takes half as long again without them."""
_WIDENED = 3 << 18
"""Numbers of a weight that are made float64 at once: they stay in the cache."""


class LinearOp(Protocol):
    """A matrix and perhaps a bias, in whatever form suits where they are."""

    @property
    def nbytes(self) -> int:
        """What its numbers take."""

    @property
    def rounds_inputs(self) -> bool:
        """Whether what is multiplied is rounded before, by far more than floats are.

        A number between two steps then turns with the last bit of whatever has made it.
        """

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Map ``[n, in]`` to ``[n, out]``, a new tensor or ``out``."""

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """Add what ``[n, in]`` is mapped to onto ``[n, out]``, in place.

        Returns:
            What is left to be added; None for nothing.
        """


class Linear(Unsteady):
    """``x @ weight.T + bias``, weight of shape ``[out, in]``; in float64 if it is to be steady.

    On a CPU the weight is kept transposed, its rows a little apart: measured on two-core AVX-512
    machines that is the fastest form from 1 to 64 rows, and twice as fast at 8 as the stored one.
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
        wide, step = x.double(), max(1, _WIDENED // self._weight.shape[0])
        for begin in range(0, self._weight.shape[1], step):
            some = slice(begin, begin + step)
            out[:, some] = torch.mm(wide, self._weight[:, some].double())
        return out if self._bias is None else out.add_(self._bias)

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        if self.is_steady:
            onto.add_(self(x))
            return None
        onto.addmm_(x, self._weight)
        if self._bias is not None:
            onto.add_(self._bias)
        return None


def _pack(weight: torch.Tensor) -> torch.Tensor:
    """The transpose of a weight, in memory of its own: shape ``[in, out]``."""
    rows, columns = weight.shape
    packed = weight.new_empty(columns, rows + _PADDING)[:, :rows]
    return packed.copy_(weight.t())


class RMSNorm:
    """Scale the last dimension to a root mean square of one, then by the weight, in float32.

    Written as ``x / hypot(|x|, sqrt(n * eps)) * (weight * sqrt(n))``, which is the same number in
    half of the time of torch's composite ``rms_norm`` on a CPU at batch 1.
    """

    __slots__ = ("_floor", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float, offset: float = 0.0) -> None:
        """Take the weight as stored.

        Args:
            weight: shape ``[n]``, or ``[heads, n]`` for a norm of each head.
            eps: added to the mean square.
            offset: added to the weight.
        """
        size = weight.shape[-1]
        self._weight = (weight.float() + offset) * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, x: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
        """Add ``delta`` onto ``[..., n]`` in place, and normalise that into a new tensor."""
        if delta is not None:
            x.add_(delta)
        if x.dtype == torch.float32:
            length = torch.linalg.vector_norm(x, 2, -1, True)
            return x.div(length.hypot_(self._floor)).mul_(self._weight)
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32)
        return x.div(length.hypot_(self._floor)).mul_(self._weight).to(x.dtype)


class Gated(Unsteady):
    """``act(gate) * up``.

    Args:
        name: the function of the gate, as ``ModelSpec`` calls it.
    """

    __slots__ = ("_act", "_is_copied")

    def __init__(self, name: str) -> None:
        super().__init__()
        self._act = activation(name)
        # Torch has two of these, and takes the other one for numbers that lie in one piece.
        self._is_copied = name == "gelu"

    def __call__(self, joined: torch.Tensor) -> torch.Tensor:
        """Map gates and what they gate, ``[n, 2 * size]``, to a new ``[n, size]``."""
        gate, up = joined.chunk(2, -1)
        if not self.is_steady:
            return self._act(gate).mul_(up)
        gated = [
            self._act(some.contiguous() if self._is_copied else some) for (some,) in pieces(gate)
        ]
        return (gated[0] if len(gated) == 1 else torch.cat(gated)).mul_(up)


class FeedForward:
    """A gated feed-forward part: ``down(act(gate(x)) * up(x))`` with gate and up as one matrix.

    Args:
        gate_up: the matrix.
        down: back to the stream.
        gated: ``act(gate) * up`` of what the matrix makes.

    Attributes:
        entry: the first matrix, which alone is given the part's input.
    """

    __slots__ = ("_down", "_gated", "entry")

    def __init__(
        self, gate_up: LinearOp, down: LinearOp, gated: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.entry = gate_up
        self._down = down
        self._gated = gated

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""
        return self._down(self._gated(self.entry(x)))

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        return self._down.add_to(onto, self._gated(self.entry(x)))
