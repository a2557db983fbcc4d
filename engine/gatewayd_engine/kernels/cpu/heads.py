"""Norm and rotary embedding of a row's heads, and the writing of its keys and values to a page."""

from __future__ import annotations

from gatewayd_engine.kernels.cpu.attention import PagedHeads
from gatewayd_engine.kernels.cpu.norm import normalise
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.llvm.builder import KernelFunction, Pointer


def rotate(f: KernelFunction, x: Pointer, rotation: Pointer, size: int, lanes: int) -> None:
    """Rotate adjacent pairs of ``size`` numbers in place. Source: arXiv 2104.09864.

    Args:
        f: function under construction.
        x: a head.
        rotation: cosine and sine of each pair.
        size: numbers to rotate.
        lanes: of a vector.
    """
    evens = [i // 2 * 2 for i in range(lanes)]
    odds = [i // 2 * 2 + 1 for i in range(lanes)]
    swapped = [i ^ 1 for i in range(lanes)]
    signs = f.vector_of([-1.0 if i % 2 == 0 else 1.0 for i in range(lanes)])
    with f.loop(0, size, lanes) as at:
        value, both = x.vector(lanes, at), rotation.vector(lanes, at)
        cosines, sines = f.shuffle(both, both, evens), f.shuffle(both, both, odds)
        turned = f.shuffle(value, value, swapped) * (sines * signs)
        x.store(f.fma(value, cosines, turned), at)


def prepare_heads(
    f: KernelFunction,
    shape: StepShape,
    lanes: int,
    qkv: Pointer,
    norms: Pointer,
    rotation: Pointer,
    keys: Pointer,
) -> None:
    """Normalise and rotate a row's queries and keys; copy its keys and values to a KV slot.

    Args:
        f: function under construction.
        shape: of the model.
        lanes: of a vector.
        qkv: of the row, ``[num_heads + 2 * num_kv_heads, head_dim]``; changed in place.
        norms: weights of the heads' norms, ``[num_heads + num_kv_heads, head_dim]``.
        rotation: of the row's position.
        keys: of the row's slot.
    """
    rotated = shape.num_heads + shape.num_kv_heads
    if shape.qk_norm == "projection":
        begin = shape.num_heads * shape.head_dim
        for first, count in ((0, shape.num_heads), (begin, shape.num_kv_heads)):
            x, size = qkv + first, count * shape.head_dim
            normalise(f, x, norms + first, x, size, lanes, shape.norm_eps)
    with f.loop(0, rotated) as index:
        head = qkv + index * shape.head_dim
        if shape.qk_norm == "head":
            weight = norms + index * shape.head_dim
            normalise(f, head, weight, head, shape.head_dim, lanes, shape.norm_eps)
        rotate(f, head, rotation, shape.rotary_dim, lanes)
    width = shape.num_kv_heads * shape.head_dim
    values = keys + PagedHeads(shape).half
    with f.loop(0, width, lanes) as at:
        keys.store(qkv.vector(lanes, at + shape.num_heads * shape.head_dim), at)
        values.store(qkv.vector(lanes, at + rotated * shape.head_dim), at)
