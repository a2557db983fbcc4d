"""Quantizers: weights of few bits, as checkpoints have them or made of float ones while loading.

Formats know packing, engines know products; between them is one form, ``GroupedWeight``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import torch


class GroupedWeight(NamedTuple):
    """A matrix of few bits: ``codes * scales + offsets``, multiplied and then added in float32.

    Rows are independent of each other: an engine joins matrices and reorders their rows.

    Attributes:
        codes: uint8, int8 or a type of float8, shape ``[rows, columns]``; one a byte.
        scales: float32, shape ``[rows, groups]``.
        offsets: float32, shape ``[rows, groups]``; None for zeros.
        bits: of a code: integers are below ``2**bits``, or from ``-2**(bits - 1)``; 8 for floats.
        group_of: the group of each column, int32, shape ``[columns]``; None for neighbours:
            column ``c`` is in group ``c // (columns // groups)``.
        activations: what products are meant to be computed from: ``float``, or codes of ``int8``
            or ``e4m3``, to which each row of the other factor is rounded with a scale of its own,
            or one for each of the weight's groups if it has several. A machine that does not
            multiply such codes takes floats.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None
    bits: int = 8
    group_of: torch.Tensor | None = None
    activations: Literal["float", "int8", "e4m3"] = "float"


class SparseWeight(NamedTuple):
    """A matrix of which at most two of each four neighbours in a row are not zero.

    Rows are independent of each other. Devices that have a product for it pack what is not zero; a
    CPU multiplies the zeros, too.

    Attributes:
        values: floats, zeros among them, shape ``[rows, columns]``; columns are a multiple of 4.
    """

    values: torch.Tensor


class StaticWeight(NamedTuple):
    """A matrix that is multiplied with inputs rounded to codes of one scale, whatever they are.

    An input becomes ``code * scale``, where the code is the nearest to ``input / scale``, and what
    is beyond the largest code that. Matrices of one input are joined under the largest scale.

    Attributes:
        weight: the matrix, of floats or of few bits.
        activations: the codes: ``int8`` or ``e4m3``.
        scale: finite and above 0.
    """

    weight: torch.Tensor | GroupedWeight
    activations: Literal["int8", "e4m3"]
    scale: float


Weight: TypeAlias = "torch.Tensor | GroupedWeight | SparseWeight | StaticWeight"
"""A matrix, of floats, of few bits, or half of zeros, or one with a scale for its inputs."""


class Matrix(NamedTuple):
    """A matrix of a model.

    Attributes:
        name: as Hugging Face calls it, without ``.weight``: ``model.layers.0.mlp.down_proj``.
        rows: what it makes of an input.
        columns: numbers of the input.
    """

    name: str
    rows: int
    columns: int


class Stored(NamedTuple):
    """A tensor of a file.

    Attributes:
        dtype: by its name in safetensors: ``F32``, ``I32``, ``F8_E4M3``.
        shape: of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]


class Announcement(NamedTuple):
    """What a checkpoint says about how it is quantized.

    Attributes:
        values: its fields, as they stand.
        where: for sentences: ``config.json: quantization_config``.
    """

    values: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class QuantizerResources:
    """What the host hands to a quantizer in ``open``, before anything of the model is read.

    Attributes:
        folder: the model's checkpoint.
        device: ``cpu`` or ``cuda:N``: where products are computed.
    """

    folder: str
    device: str


class QuantizerStrategy(Strategy, Protocol):
    """Gives quantized weights: it has the method of ``Reads``, of ``Quantizes``, or both.

    Or it ``Multiplies`` them (``gatewayd_hooks.multiplying``), whoever gives them.

    It is used while the model is loaded, and is fixed while the engine runs. Whatever it raises
    ends the start; what it says is what operators read.
    """

    def open(self, resources: QuantizerResources) -> None:
        """Learn where the model is."""


@runtime_checkable
class Reads(Protocol):
    """A format of checkpoints. A checkpoint's ``quant_method`` is the name of its strategy."""

    def scheme(self, announced: Announcement) -> Scheme:
        """How a checkpoint stores its matrices; before any of them is read.

        Raises:
            ValueError: the announcement asks for what is not supported; one sentence that begins
                with ``where`` and names the field.
        """


class Scheme(Protocol):
    """How one checkpoint stores its matrices."""

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """The tensors of a matrix that must be there, and the forms that each may have.

        Returns:
            By what stands behind the matrix's name and a dot: ``qweight``, ``scales``. None for a
            matrix that is stored plainly, as ``weight``. A bias is none of them.
        """

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """The same of those that may be there."""

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """Unpack a matrix.

        Args:
            matrix: one that is not stored plainly.
            take: reads one of its tensors, as stored; raises KeyError for one that is not there.

        Raises:
            ValueError: numbers that cannot be, as a scale that is not finite; in a sentence.
        """


@runtime_checkable
class Quantizes(Protocol):
    """Makes weights of few bits of float ones while a model is loaded."""

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> Weight | None:
        """Quantize one matrix.

        Args:
            matrix: what it is; matrices that see the same input are joined, as ``qkv_proj``.
            weight: float32, shape ``[rows, columns]``; to be left as it is.

        Returns:
            None for one that had better stay as it is.

        Raises:
            ValueError: its numbers cannot be quantized; in a sentence.
        """


@runtime_checkable
class Writes(Protocol):
    """Writes checkpoints of the format that it reads, for ``gatewayd quantize``.

    What is announced and packed is read back by its own ``scheme``, bit for bit.
    """

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """The ``quantization_config`` of what is written with its settings.

        Args:
            packed: names of all matrices that are to be of few bits.
            plain: names of the other matrices of layers.

        Raises:
            ValueError: the format cannot tell them apart; one sentence.
        """

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """Round a matrix of floats to what the format can hold, without a look at inputs.

        Args:
            matrix: one that the scheme packs.
            weight: float32, shape ``[rows, columns]``; to be left as it is.

        Raises:
            ValueError: its numbers cannot be quantized; in a sentence.
        """

    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        """The tensors of a matrix by suffix, as the scheme has them in ``stored`` and ``optional``.

        Args:
            matrix: one that the scheme packs.
            weight: of ``nearest`` or ``fit``.
        """


@dataclass(frozen=True, slots=True)
class Site:
    """Matrices of one input, which are fitted together; nothing of it is to be written to.

    Attributes:
        matrices: which they are.
        weights: theirs in the same order, float32, each of shape ``[rows, columns]``.
        inputs: some rows of what they are multiplied with, float32, shape ``[n, columns]``.
        gram: ``inputs.T @ inputs / n`` of all rows that were seen, float64, shape
            ``[columns, columns]``.
        loss: how far the part of the layer that they are in is from what it was, with other
            weights in their places: a mean square, for dense float32 ones in the same order.
        foldable: whether inputs may come divided by a factor a column, as what makes them is
            divided: gives the positive factors that can be kept exactly, float32 ``[columns]``,
            nearest to some. None where they may not.
    """

    matrices: tuple[Matrix, ...]
    weights: tuple[torch.Tensor, ...]
    inputs: torch.Tensor
    gram: torch.Tensor
    loss: Callable[[Sequence[torch.Tensor]], float]
    foldable: Callable[[torch.Tensor], torch.Tensor] | None = None


class Fit(NamedTuple):
    """What a calibration made of a site.

    Attributes:
        weights: of its matrices, in their order.
        factors: of ``foldable``: the weights are to be multiplied with inputs that are divided by
            them; None for inputs as they were.
    """

    weights: tuple[GroupedWeight | SparseWeight, ...]
    factors: torch.Tensor | None = None


@runtime_checkable
class Calibrates(Protocol):
    """Looks at what matrices are multiplied with before it rounds them; it also ``Writes``.

    Attributes:
        propagates: whether inputs are those of a model whose sites before are rounded already,
            so that later ones make up for what was lost. Then nothing is foldable.
    """

    propagates: bool

    def fit(self, site: Site) -> Fit:
        """Round the matrices of a site; what they make of its inputs is to stay.

        Raises:
            ValueError: its numbers cannot be quantized; in a sentence.
        """


@runtime_checkable
class Prunes(Protocol):
    """Looks at what matrices are multiplied with before it thins them out; it also ``Quantizes``.

    `gatewayd quantize` writes what is left as floats, zeros among them: any reader takes those.
    Inputs are those of a model whose sites before are thinned out already.
    """

    def prune(self, site: Site) -> tuple[SparseWeight, ...]:
        """Thin out the matrices of a site; what they make of its inputs is to stay.

        Raises:
            ValueError: its numbers cannot be; in a sentence.
        """
