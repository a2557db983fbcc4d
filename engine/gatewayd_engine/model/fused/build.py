"""Construction of a decoder's fused step: which decoders have one, and where its weights are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.kernels.cpu.step_layout import LAYER_SIZE, LayerField, MatrixField, StepShape
from gatewayd_engine.model.decoder import Attention, Decoder, DecoderLayer
from gatewayd_engine.model.fused.step import FusedStep
from gatewayd_engine.model.layers import FeedForward, HeadNorm, ProjectionNorm, RMSNorm, Unnormed
from gatewayd_engine.model.linears.panel_linear import PanelLinear
from gatewayd_engine.model.rotary_embedding import Rotary


def fused_step(decoder: Decoder, page_size: int) -> FusedStep | None:
    """Return the fused step of a decoder; None if its layers or sizes have none."""
    spec, head, final = decoder.spec, decoder.head, decoder.norm
    norms = spec.family.norms
    of_layers = zip(decoder.layers, spec.windows, decoder.rotaries, strict=True)
    blocks = [_block(*each) for each in of_layers]
    # In a tree of drafts, slots from a chunk's begin on may have positions before it.
    has_chunks = spec.attention.chunked and any(spec.windows)
    if decoder.sinks is not None or has_chunks:
        return None
    if not (isinstance(head, PanelLinear) and isinstance(final, RMSNorm)):
        return None
    shape = StepShape(
        num_layers=spec.num_layers,
        hidden=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate=spec.intermediate_size,
        rotary_dim=spec.rope.rotary_dim,
        norm_eps=spec.norm_eps,
        scale=spec.attention_scale,
        softcap=spec.attention_softcap,
        activation=spec.activation,
        qk_norm=None if spec.family.qk_norm == "unit" else spec.family.qk_norm,
        pre_norms=norms.before_attention is not None,
        post_norms=norms.after_attention is not None,
        page_size=page_size,
        vocab=spec.vocab_size,
        logit_softcap=spec.logit_softcap,
    )
    found = [block for block in blocks if block is not None]
    is_alike = spec.query_scale is None and spec.family.qk_norm != "unit"
    if len(found) < len(blocks) or not is_alike or not shape.fits(head.team.processor.lanes):
        return None
    of_head = np.zeros(len(MatrixField), np.int64)
    describe(head, of_head)
    return FusedStep(decoder, shape, np.stack(found), final.weight, of_head, head.team)


def _block(layer: DecoderLayer, window: int, rotary: Rotary) -> NDArray[np.int64] | None:
    """Return a layer's addresses and sizes, as ``step_layout.LayerField`` orders them.

    None if one of its operations is none that a fused step computes.
    """
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, Attention) or not isinstance(mlp, FeedForward):
        return None
    block = np.zeros(LAYER_SIZE, np.int64)
    products = (
        (LayerField.QKV, attention.entry),
        (LayerField.OUT, attention.out),
        (LayerField.GATE_UP, mlp.entry),
        (LayerField.DOWN, mlp.down),
    )
    for at, linear in products:
        if not isinstance(linear, PanelLinear) or linear.is_gated != (at == LayerField.GATE_UP):
            return None
        describe(linear, block[at:])
    norms: tuple[tuple[LayerField, object], ...] = (
        (LayerField.NORM_ATTENTION, layer.before_attention),
        (LayerField.NORM_MLP, layer.before_mlp),
        (LayerField.NORM_AFTER_ATTENTION, layer.after_attention),
        (LayerField.NORM_AFTER_MLP, layer.after_mlp),
        (LayerField.NORM_HEADS, attention.qk_norm),
    )
    for place, norm in norms:
        if isinstance(norm, RMSNorm | HeadNorm | ProjectionNorm):
            block[place] = norm.weight.data_ptr()
        elif norm is not None and not isinstance(norm, Unnormed):
            return None
    rope = rotary.table()
    block[LayerField.WINDOW] = window
    block[LayerField.ROPE], block[LayerField.ROPE_STRIDE] = rope.data_ptr(), rope.stride(0)
    return block


def describe(linear: PanelLinear, block: NDArray[np.int64]) -> None:
    """Write the address and sizes of a matrix to the start of a block; see ``MatrixField``."""
    panels = linear.panels
    block[MatrixField.FUNCTION] = linear.function
    block[MatrixField.WEIGHTS] = panels.data.data_ptr()
    block[MatrixField.BIAS] = 0 if linear.bias is None else linear.bias.data_ptr()
    block[MatrixField.INPUTS] = panels.inputs
    block[MatrixField.GROUPS] = panels.groups
    block[MatrixField.OUTPUTS] = panels.outputs
    block[MatrixField.ROUNDING] = linear.rounding
    block[MatrixField.ROUNDED_SIZE] = linear.rounded_size
