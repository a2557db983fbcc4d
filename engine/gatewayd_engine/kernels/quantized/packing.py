"""Packed layout of low-bit matrices: 32-bit words in the order in which kernels read them.

A 32-bit word has codes of one row of the matrix, sixteen columns apart. Sixteen words thus have
sixteen adjacent columns for each code index in a word, which is the depth of one tensor-core
instruction, and they belong to one group where groups have a multiple of sixteen columns. Words of
adjacent rows for the same columns, which are loaded together, are contiguous.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.quantization import GroupedWeight

LANES = 16
"""Adjacent columns at each code index of sixteen words; a group has a multiple of them."""
_WORD = 32
_E4M3 = torch.float8_e4m3fn


class PackedWeight(NamedTuple):
    """Packed low-bit matrix ``[rows, columns]`` of ``(code - zero) * scale + offset``.

    Attributes:
        words: int32, shape ``[blocks, rows, 16]``: bits ``bits * i`` and up of word ``j`` of block
            ``b`` are the code of column ``16 * (32 / bits) * b + 16 * i + j``. Padding codes after
            the last column are 0.
        scales: float16 where that is exact, else float32; shape ``[groups, rows]``.
        offsets: likewise; None for zeros.
        order: input index of each packed column, int32, shape ``[columns]``; None for the identity.
        columns: number of columns.
        bits: bits of a code, 4 or 8.
        zero: zero point, the code of 0; 0 where codes are floats.
        is_float: whether codes are e4m3.
    """

    words: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    order: torch.Tensor | None
    columns: int
    bits: int
    zero: int
    is_float: bool

    @property
    def rows(self) -> int:
        """Output features."""
        return self.words.shape[1]

    @property
    def per_word(self) -> int:
        """Codes per word."""
        return _WORD // self.bits

    @property
    def pieces(self) -> int:
        """Number of column blocks, each loaded together, over which a sum runs."""
        return self.words.shape[0]

    @property
    def group(self) -> int:
        """Columns per group."""
        return self.columns // self.scales.shape[0]

    @property
    def run(self) -> int:
        """Number of consecutive codes of a word that belong to one group."""
        # A single group may have any number of columns, also one that is no multiple of LANES.
        if self.scales.shape[0] == 1:
            return self.per_word
        return math.gcd(self.per_word, self.group // LANES)

    @property
    def nbytes(self) -> int:
        """Memory of all tensors, in bytes."""
        tensors = (self.words, self.scales, self.offsets, self.order)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def pack(weight: GroupedWeight) -> PackedWeight | None:
    """Pack a weight; return None if the kernels do not support its groups or codes."""
    rows, columns = weight.codes.shape
    groups = weight.scales.shape[1]
    is_float = weight.codes.is_floating_point()
    if rows == 0 or columns == 0 or (is_float and weight.codes.dtype != _E4M3):
        return None
    order, codes = None, weight.codes
    if weight.group_of is not None:
        sizes = torch.bincount(weight.group_of.long(), minlength=groups)
        if columns % groups or not bool((sizes == columns // groups).all()):
            return None
        # Columns of a group become adjacent; kernels gather activations in this order instead.
        order = torch.argsort(weight.group_of, stable=True)
        # As bytes: torch cannot index every 8-bit float dtype.
        codes = codes.view(torch.uint8)[:, order].view(codes.dtype)
    if groups > 1 and (columns // groups) % LANES:
        return None
    bits, zero, codes = _unsigned(codes, weight.bits)
    offsets = weight.offsets
    # Symmetric quantization about the middle code needs no offsets.
    middle = 1 << (bits - 1)
    if offsets is not None and not zero and torch.equal(offsets, weight.scales * -middle):
        zero, offsets = middle, None
    return PackedWeight(
        words=_words(codes, bits),
        scales=_by_group(weight.scales),
        offsets=None if offsets is None else _by_group(offsets),
        order=None if order is None else order.int(),
        columns=columns,
        bits=bits,
        zero=zero,
        is_float=is_float,
    )


def _unsigned(codes: torch.Tensor, bits: int) -> tuple[int, int, torch.Tensor]:
    """Return the bits per code, the zero point, and the codes as uint8."""
    if codes.dtype == torch.uint8:
        # The codes themselves are checked: declared bits alone would let larger ones be cut off.
        return (4 if bits == 4 and bool((codes < 16).all()) else 8), 0, codes
    if codes.dtype == torch.int8:
        fits = bits == 4 and bool(((codes >= -8) & (codes < 8)).all())
        zero = 8 if fits else 128
        # Addition modulo 256: two's complement becomes an offset by the zero point.
        return (4 if fits else 8), zero, (codes.view(torch.uint8) + zero)
    return 8, 0, codes.view(torch.uint8)


def _words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    rows, columns = codes.shape
    per_word = _WORD // bits
    block = LANES * per_word
    blocks = -(-columns // block)
    padded = torch.nn.functional.pad(codes, (0, blocks * block - columns))
    apart = padded.view(rows, blocks, per_word, LANES)
    words = torch.zeros((rows, blocks, LANES), dtype=torch.int32, device=codes.device)
    for place in range(per_word):
        # The highest code reaches the sign bit; kernels shift and mask, as ``unpack`` does.
        words |= apart[:, :, place].int() << bits * place
    return words.transpose(0, 1).contiguous()


def _by_group(numbers: torch.Tensor) -> torch.Tensor:
    """Transpose ``[rows, groups]`` to ``[groups, rows]``, in float16 where that is exact."""
    half = numbers.half()
    kept = half if torch.equal(half.float(), numbers) else numbers
    return kept.t().contiguous()


def unpack(packed: PackedWeight) -> torch.Tensor:
    """Dequantize to float32, shape ``[columns, rows]``, with columns in the order of the input."""
    per_word, bits = packed.per_word, packed.bits
    words = packed.words.transpose(1, 2).unsqueeze(1)  # [blocks, 1, 16, rows]
    places = torch.arange(per_word, dtype=torch.int32, device=words.device).view(1, -1, 1, 1)
    # The mask removes the copies of the sign bit that an arithmetic shift brings in.
    codes = (words >> places * bits) & ((1 << bits) - 1)
    codes = codes.reshape(-1, packed.rows)[: packed.columns]
    if packed.is_float:
        values = codes.to(torch.uint8).view(_E4M3).float()
    else:
        values = (codes - packed.zero).float()
    group = torch.arange(packed.columns, device=words.device) // packed.group
    values *= packed.scales.float()[group]
    if packed.offsets is not None:
        values += packed.offsets.float()[group]
    if packed.order is None:
        return values
    return torch.empty_like(values).index_copy_(0, packed.order.long(), values)
