"""Quantizers: quantized weights, read from checkpoints or made of float weights while loading.

Formats know the packing, engines know the matrix multiplication; the form between them is
``GroupedWeight``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import torch


class GroupedWeight(NamedTuple):
    """Quantized matrix ``codes * scales + offsets``, multiplied and then added in float32.

    Rows are independent of each other: an engine concatenates matrices and reorders their rows.

    Attributes:
        codes: uint8, int8 or a float8 type, shape ``[rows, columns]``; one code per byte.
        scales: float32, shape ``[rows, groups]``.
        offsets: float32, shape ``[rows, groups]``; None for zeros.
        bits: per code: integers are below ``2**bits``, or at least ``-2**(bits - 1)``; 8 for
            floats.
        group_of: group of each column, int32, shape ``[columns]``; None for adjacent columns:
            column ``c`` is in group ``c // (columns // groups)``.
        activations: quantization of the activations: ``float`` for none, or ``int8`` or ``e4m3``
            codes, to which each row of the other factor is rounded with a scale of its own, or with
            one per weight group if there are several. A machine that cannot multiply such codes
            uses floats.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None = None
    bits: int = 8
    group_of: torch.Tensor | None = None
    activations: Literal["float", "int8", "e4m3"] = "float"


class SparseWeight(NamedTuple):
    """2:4 sparse matrix: at most two of each four adjacent values in a row are nonzero.

    Rows are independent of each other. Devices with a kernel for it pack the nonzeros; a CPU
    multiplies the zeros, too.

    Attributes:
        values: floats including zeros, shape ``[rows, columns]``; columns are a multiple of 4.
    """

    values: torch.Tensor


class StaticWeight(NamedTuple):
    """Matrix whose inputs are quantized with one static scale.

    An input becomes ``code * scale``, where the code is the nearest to ``input / scale``, saturated
    at the largest code. Matrices that share an input are merged with the largest scale.

    Attributes:
        weight: the matrix, float or quantized.
        activations: the codes: ``int8`` or ``e4m3``.
        scale: finite and above 0.
    """

    weight: torch.Tensor | GroupedWeight
    activations: Literal["int8", "e4m3"]
    scale: float


Weight: TypeAlias = "torch.Tensor | GroupedWeight | SparseWeight | StaticWeight"
"""Matrix: float, quantized, 2:4 sparse, or with a static scale for its inputs."""


class Matrix(NamedTuple):
    """Name and shape of a matrix of a model.

    Attributes:
        name: in Hugging Face's naming, without ``.weight``: ``model.layers.0.mlp.down_proj``.
        rows: output features.
        columns: input features.
    """

    name: str
    rows: int
    columns: int


class Stored(NamedTuple):
    """Type and shape of a tensor in a file.

    Attributes:
        dtype: name of the type in safetensors: ``F32``, ``I32``, ``F8_E4M3``.
        shape: of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]


class Announcement(NamedTuple):
    """Quantization configuration of a checkpoint.

    Attributes:
        values: its fields, unchanged.
        where: source, for messages: ``config.json: quantization_config``.
    """

    values: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class QuantizerResources:
    """Passed by the host to a quantizer in ``open``, before anything of the model is read.

    Attributes:
        folder: the model's checkpoint.
        device: ``cpu`` or ``cuda:N``: where matrices are multiplied.
    """

    folder: str
    device: str


class QuantizerStrategy(Strategy, Protocol):
    """Provides quantized weights: it implements ``Reads``, ``Quantizes``, or both.

    Or it ``Multiplies`` them (``gatewayd_hooks.multiplying``), whichever quantizer they come from.

    It is used while the model is loaded, and cannot be replaced while the engine runs. Any
    exception aborts the start; operators read its message.
    """

    def open(self, resources: QuantizerResources) -> None:
        """Read where the model is."""


@runtime_checkable
class Reads(Protocol):
    """Reads a checkpoint format. A checkpoint's ``quant_method`` is the name of its strategy."""

    def scheme(self, announced: Announcement) -> Scheme:
        """Return how a checkpoint stores its matrices; called before any of them is read.

        Raises:
            ValueError: the announcement asks for something unsupported; the message is one sentence
                that begins with ``where`` and names the field.
        """


class Scheme(Protocol):
    """Storage layout of the matrices of one checkpoint."""

    def stored(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]] | None:
        """Return the required tensors of a matrix, and the types and shapes that each may have.

        Returns:
            Keyed by the suffix after the matrix's name and a dot: ``qweight``, ``scales``. None for
            a matrix that is stored unquantized, as ``weight``. A bias is not included.
        """

    def optional(self, matrix: Matrix) -> Mapping[str, tuple[Stored, ...]]:
        """Return the optional tensors of a matrix, in the same form."""

    def weight(self, matrix: Matrix, take: Callable[[str], torch.Tensor]) -> Weight:
        """Unpack a matrix.

        Args:
            matrix: one that is stored quantized.
            take: reads one of its tensors, as stored; raises KeyError for one that does not exist.

        Raises:
            ValueError: invalid numbers, such as a scale that is not finite; the message is a
                sentence.
        """


@runtime_checkable
class Quantizes(Protocol):
    """Quantizes float weights while a model is loaded."""

    def quantize(self, matrix: Matrix, weight: torch.Tensor) -> Weight | None:
        """Quantize one matrix.

        Args:
            matrix: its name and shape; matrices with the same input are merged, as ``qkv_proj``.
            weight: float32, shape ``[rows, columns]``; must not be modified.

        Returns:
            None for a matrix that should stay unquantized.

        Raises:
            ValueError: its numbers cannot be quantized; the message is a sentence.
        """


@runtime_checkable
class Writes(Protocol):
    """Writes checkpoints of the format that it reads, for ``gatewayd quantize``.

    What is announced and packed is read back by its own ``scheme``, bit for bit.
    """

    def announce(self, packed: Sequence[str], plain: Sequence[str]) -> Mapping[str, Any]:
        """Return the ``quantization_config`` of a checkpoint that is written with its settings.

        Args:
            packed: names of all matrices to quantize.
            plain: names of the other matrices of layers.

        Raises:
            ValueError: the format cannot distinguish them; the message is one sentence.
        """

    def nearest(self, matrix: Matrix, weight: torch.Tensor) -> GroupedWeight:
        """Round a float matrix to the nearest values of the format, without calibration.

        Args:
            matrix: one that the scheme packs.
            weight: float32, shape ``[rows, columns]``; must not be modified.

        Raises:
            ValueError: its numbers cannot be quantized; the message is a sentence.
        """

    def pack(self, matrix: Matrix, weight: GroupedWeight) -> Mapping[str, torch.Tensor]:
        """Return a matrix's tensors by suffix, as in the scheme's ``stored`` and ``optional``.

        Args:
            matrix: one that the scheme packs.
            weight: result of ``nearest`` or ``fit``.
        """


@dataclass(frozen=True, slots=True)
class Site:
    """Matrices with the same input, which are calibrated together; read-only.

    Attributes:
        matrices: their names and shapes.
        weights: in the same order, float32, each of shape ``[rows, columns]``.
        inputs: some rows of their input, float32, shape ``[n, columns]``.
        gram: ``inputs.T @ inputs / n`` over all calibration rows, float64, shape ``[columns,
            columns]``.
        loss: mean squared change of the output of the layer part that contains them, with the given
            weights in their place: dense float32 ones in the same order.
        foldable: whether inputs may be divided by a factor per column, by scaling what produces
            them: returns the exactly representable positive factors, float32 ``[columns]``, nearest
            to the given ones. None if that is not possible.
    """

    matrices: tuple[Matrix, ...]
    weights: tuple[torch.Tensor, ...]
    inputs: torch.Tensor
    gram: torch.Tensor
    loss: Callable[[Sequence[torch.Tensor]], float]
    foldable: Callable[[torch.Tensor], torch.Tensor] | None = None


class Fit(NamedTuple):
    """Result of calibrating a site.

    Attributes:
        weights: of its matrices, in their order.
        factors: result of ``foldable``: the weights expect inputs divided by them; None for
            unscaled inputs.
    """

    weights: tuple[GroupedWeight | SparseWeight, ...]
    factors: torch.Tensor | None = None


@runtime_checkable
class Calibrates(Protocol):
    """Quantizes matrices with calibration inputs; it also implements ``Writes``.

    Attributes:
        propagates: whether inputs come from a model whose earlier sites are quantized already, so
            that later ones compensate their error. Then nothing is foldable.
    """

    propagates: bool

    def fit(self, site: Site) -> Fit:
        """Quantize the matrices of a site so that their outputs change least for its inputs.

        Raises:
            ValueError: its numbers cannot be quantized; the message is a sentence.
        """


@runtime_checkable
class Prunes(Protocol):
    """Prunes matrices with calibration inputs; it also implements ``Quantizes``.

    ``gatewayd quantize`` writes the result as floats including zeros, which any reader accepts.
    Inputs come from a model whose earlier sites are pruned already.
    """

    def prune(self, site: Site) -> tuple[SparseWeight, ...]:
        """Prune the matrices of a site so that their outputs change least for its inputs.

        Raises:
            ValueError: its numbers cannot be pruned; the message is a sentence.
        """
