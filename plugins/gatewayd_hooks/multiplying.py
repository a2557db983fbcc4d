"""Matrix multiplication kernels of plugins: a quantizer that multiplies quantized weights itself.

Its name is listed in ``[quantizer] kernels``, and its settings are in ``[quantizer.<name>]``. It
need not read checkpoints or quantize: its weights may come from any other quantizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from gatewayd_hooks.quantization import GroupedWeight


class Form(NamedTuple):
    """Properties of a ``GroupedWeight`` that are known without its data.

    Attributes:
        rows: output features.
        columns: input features.
        codes: dtype of its codes.
        bits: per code.
        groups: quantization groups per row.
        has_offsets: whether groups have offsets.
        is_ordered: whether the columns of a group are adjacent.
        activations: as in ``GroupedWeight``.
        has_bias: whether a bias is added.
        dtype: of inputs, outputs and the bias: float32 or bfloat16.
        device: of all tensors.
        capability: compute capability of that device, major and minor, if it is an NVIDIA GPU; None
            elsewhere.
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
    """Quantized matrix, packed for its kernel; it exists as long as the engine.

    It is called in each step, by one thread. On a GPU a call is captured in a CUDA graph, once for
    each number of rows, and replayed: it must not synchronize with the device or read values from
    it, and allocates memory only through torch; compilation happens in the first calls, which are
    made while the model is loaded: with 2 rows, and with 65 for the first matrix of a ``Form``. Its
    running time is not monitored.
    """

    @property
    def nbytes(self) -> int:
        """Memory that it uses, in bytes."""

    @property
    def is_steady(self) -> bool:
        """Whether an output row depends bitwise on its input row alone (batch invariance).

        That is, not on the other rows, their number or, on a CPU, torch's number of threads. On a
        CPU, a product that returns False is called row by row where bitwise equality matters (a
        model that quantizes activations).
        """

    @property
    def rounds_inputs(self) -> bool:
        """Whether it quantizes its inputs, with an error far above that of their float type."""

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply, and add the bias.

        Args:
            x: of ``Form.dtype``, shape ``[n, columns]``, ``n`` from 0; rows may be strided. Must
                not be modified.
            out: of that type, shape ``[n, rows]``; rows may be strided.

        Returns:
            ``out``, overwritten completely; a new tensor if it is None.
        """


@runtime_checkable
class Multiplies(Protocol):
    """Takes over quantized weights while the model is loaded, and multiplies them from then on.

    The quantizers of ``[quantizer] kernels`` are tried in order, before the engine's own kernels.
    The first that accepts a matrix gets it. An exception of ``suits`` or ``take`` aborts the start,
    and so does a product with a wrong shape or type, or with results far from those of its weight.
    An exception of a product in a step ends the engine; the next one starts without the plugin.
    """

    def suits(self, form: Form) -> bool:
        """Whether it supports such matrices on such a device."""

    def take(self, form: Form, weight: GroupedWeight, bias: torch.Tensor | None) -> Product | None:
        """Take over a supported matrix; the plugin may keep it, but must not write to it.

        Args:
            form: properties of the matrix.
            weight: the matrix.
            bias: of ``form.dtype``, shape ``[rows]``.

        Returns:
            None if it cannot represent these values after all.
        """
