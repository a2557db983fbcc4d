"""Unpacking of codes from packed words inside Triton kernels; ``packing`` defines the layout."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def code_at(
    words: tl.tensor,
    PLACE: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    IS_FLOAT: tl.constexpr,
) -> tl.tensor:
    """Return the codes at index ``PLACE`` of each word, minus the zero point, float32."""
    if IS_FLOAT:
        byte = words >> 8 * PLACE
        # Sign, exponent and mantissa of e4m3 move to their places in a float32.
        bits = ((byte & 0x80) << 24) | ((byte & 0x7F) << 20)
        # The difference between the exponent biases is a factor of 2 ** 120.
        code = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    else:
        # The code becomes the low mantissa bits of a float near 2 ** 23, scaled by its bit offset:
        # that takes neither a shift per code nor an integer conversion.
        # Codes of each half word stay within the low 16 bits of the 23-bit mantissa.
        SHIFT: tl.constexpr = BITS * PLACE % 16
        SCALE: tl.constexpr = 1.0 / (1 << SHIFT)
        half = words >> 16 if BITS * PLACE >= 16 else words
        bits = (half & (((1 << BITS) - 1) << SHIFT)) | 0x4B000000
        code = bits.to(tl.float32, bitcast=True) * SCALE - (8388608.0 * SCALE + ZERO)
    return code


@triton.jit
def codes_of(
    words: tl.tensor,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Return all codes of words ``[16, n]``, index by index, shape ``[16 * 32 / BITS, n]``."""
    first = tl.join(
        code_at(words, 0, BITS, ZERO, IS_FLOAT).to(DTYPE),
        code_at(words, 1, BITS, ZERO, IS_FLOAT).to(DTYPE),
    )
    second = tl.join(
        code_at(words, 2, BITS, ZERO, IS_FLOAT).to(DTYPE),
        code_at(words, 3, BITS, ZERO, IS_FLOAT).to(DTYPE),
    )
    four = tl.join(first, second)
    if BITS == 8:
        # Each join adds a bit of the code's index as last dimension, the permutation reverses them.
        codes = tl.reshape(tl.permute(four, (3, 2, 0, 1)), (64, words.shape[1]))
    else:
        third = tl.join(
            code_at(words, 4, BITS, ZERO, IS_FLOAT).to(DTYPE),
            code_at(words, 5, BITS, ZERO, IS_FLOAT).to(DTYPE),
        )
        fourth = tl.join(
            code_at(words, 6, BITS, ZERO, IS_FLOAT).to(DTYPE),
            code_at(words, 7, BITS, ZERO, IS_FLOAT).to(DTYPE),
        )
        eight = tl.join(four, tl.join(third, fourth))
        codes = tl.reshape(tl.permute(eight, (4, 3, 2, 0, 1)), (128, words.shape[1]))
    return codes
