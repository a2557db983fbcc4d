"""Products of a plugin's own: a quantizer that multiplies weights of few bits by its kernels.

Its name stands in ``[quantizer] kernels``, and its settings in ``[quantizer.<name>]``. It need not
read checkpoints, nor round: what it multiplies comes from whoever does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from gatewayd_hooks.quantization import GroupedWeight


class Form(NamedTuple):
    """What is known of a ``GroupedWeight`` before anybody looks at its numbers.

    Attributes:
        rows: what it makes of an input.
        columns: numbers of the input.
        codes: the type of its codes.
        bits: of a code.
        groups: that a row is cut into.
        has_offsets: whether groups have offsets.
        is_ordered: whether the columns of a group are neighbours.
        activations: as in ``GroupedWeight``.
        has_bias: whether a bias is added.
        dtype: of inputs, outputs and the bias: float32 or bfloat16.
        device: where all of it is.
        capability: of that device, major and minor, if it is an NVIDIA GPU; None elsewhere.
    """

    rows: int
    columns: int
    codes: torch.dtype
    bits: int
    groups: int
    has_offsets: bool
    is_ordered: bool
    activations: Literal["float", "int8", "e4m3"]
    has_bias: bool
    dtype: torch.dtype
    device: torch.device
    capability: tuple[int, int] | None


class Product(Protocol):
    """A matrix in the form of whoever multiplies it; it lives as long as the engine.

    It is called in each step, by one thread. On a GPU a call is captured in a CUDA graph, once for
    each number of rows, and replayed: it waits for nothing on the device, looks at no number there,
    and takes memory from torch alone; what is to be compiled is compiled in the first calls, which
    are made while the model is loaded: of 2 rows, and of 65 for the first matrix of a ``Form``.
    Nothing watches how long it takes.
    """

    @property
    def nbytes(self) -> int:
        """What it keeps, in bytes."""

    @property
    def is_steady(self) -> bool:
        """Whether the bits of a row of the output depend on that row of the input alone.

        Whatever the other rows are, how many, and on a CPU how many threads torch has. A CPU asks
        one that says no for row after row where bits matter (a model that rounds activations).
        """

    @property
    def rounds_inputs(self) -> bool:
        """Whether it rounds what it multiplies, by far more than floats of its type are."""

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply, and add the bias.

        Args:
            x: of ``Form.dtype``, shape ``[n, columns]``, ``n`` from 0; rows may lie apart. It is to
                be left as it is.
            out: of that type, shape ``[n, rows]``; rows may lie apart.

        Returns:
            ``out``, all of it written; a new tensor without one.
        """


@runtime_checkable
class Multiplies(Protocol):
    """Takes weights of few bits over, at load, and multiplies them from then on.

    Those of ``[quantizer] kernels`` are asked in their order, before the engine's own products. The
    first who takes a matrix over has it. What ``suits`` or ``take`` raises ends the start, and so
    does a product whose shape or type is another, or that is far from the numbers of its weight.
    What a product raises in a step ends the engine; the next one starts without the plugin.
    """

    def suits(self, form: Form) -> bool:
        """Whether it multiplies such matrices on such a device."""

    def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Product | None:
        """Take over a matrix that suits; it is the plugin's to keep, and not to be written to.

        Args:
            form: what it is.
            weight: the matrix.
            bias: of ``form.dtype``, shape ``[rows]``.

        Returns:
            None for one whose numbers it cannot hold after all.
        """
