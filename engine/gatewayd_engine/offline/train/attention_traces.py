"""Recording of a model's attention weights for the last tokens of a text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.parts import PlainParts
from gatewayd_engine.model.spec import SpecError, read_spec


class AttentionTrace(NamedTuple):
    """Attention of one layer over a text.

    Attributes:
        layer: index of the layer.
        weights: attention weights of the last tokens, causal, ``[num_heads, rows, tokens]``.
        queries: of these tokens, after rotary, shape ``[rows, num_heads, head_dim]``.
        keys: of all tokens, after rotary, shape ``[tokens, num_kv_heads, head_dim]``.
    """

    layer: int
    weights: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor


def open_decoder(folder: Path) -> Decoder:
    """Load a checkpoint in float32 on the CPU.

    Raises:
        SpecError, LoadError: it cannot be read.
    """
    spec = read_spec(folder, None)
    if spec.family.has_sinks:
        raise SpecError(f"{folder}: {spec.architecture} has attention sinks, which are not traced")
    checkpoint = Checkpoint.open(folder, spec, None)
    return read(checkpoint, torch.float32, "cpu", lambda done: None, PlainParts())


@torch.inference_mode()
def trace(
    decoder: Decoder, ids: list[int], rows: int, look: Callable[[AttentionTrace], None]
) -> None:
    """Prefill a text and record the attention of its last ``rows`` tokens.

    Args:
        decoder: without soft caps and sliding windows.
        ids: of the text.
        rows: number of tokens to record.
        look: called with the attention of each layer, in order.
    """
    attend = _Tracing(decoder.spec.attention, rows, look)
    decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), attend)


class _Tracing:
    """Causal attention over one text without a KV cache; an implementation of ``Attend``."""

    def __init__(
        self, shape: AttentionShape, rows: int, look: Callable[[AttentionTrace], None]
    ) -> None:
        self._shape = shape
        self._rows = rows
        self._look = look

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """See ``Attend``."""
        shape, tokens = self._shape, len(query)
        parts = key_value.view(tokens, shape.num_parts, shape.num_kv_heads, -1).unbind(1)
        keys, values = parts[0], parts[-1]
        q, k, v = (one.transpose(0, 1) for one in (query, keys, values))
        answer = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=shape.scale, enable_gqa=True
        )
        # Only these scores are computed explicitly: all would take memory quadratic in the length.
        last = q[:, -self._rows :]
        by_head = k.repeat_interleave(shape.num_heads // shape.num_kv_heads, 0)
        scores = last @ by_head.transpose(1, 2) * shape.scale
        at = torch.arange(tokens)
        scores.masked_fill_(at > at[-self._rows :, None], -torch.inf)
        # Copied, because the decoder overwrites its buffers in the next layer.
        queries = last.transpose(0, 1).clone()
        self._look(AttentionTrace(layer, torch.softmax(scores, -1), queries, keys.clone()))
        return answer.transpose(0, 1).reshape(tokens, -1)
