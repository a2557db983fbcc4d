"""Fixtures: reference attention, and a reference run of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from gatewayd_engine.model.attention_api import Attend
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.decoder import Decoder


def causal_attend(shape: AttentionShape, sinks: Sequence[torch.Tensor] | None = None) -> Attend:
    """Dense attention over one prompt that starts at position 0."""

    def attend(layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        num_tokens, group = query.shape[0], shape.num_heads // shape.num_kv_heads
        parts = key_value.chunk(shape.num_parts, dim=1)
        key, value = parts[0], parts[-1]
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * shape.scale
        if shape.softcap is not None:
            scores = torch.tanh(scores / shape.softcap) * shape.softcap
        at = torch.arange(num_tokens)
        now, window = at[:, None], shape.windows[layer]
        is_seen = at <= now
        if window and shape.chunked:
            is_seen &= at // window == now // window
        elif window:
            is_seen &= now - at < window
        scores = scores.masked_fill(~is_seen, float("-inf"))
        if sinks is not None:
            sink = sinks[layer].to(scores.dtype).view(-1, 1, 1).expand(-1, num_tokens, 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., :num_tokens]
        return torch.einsum("hqk,khd->qhd", weights, value).reshape(num_tokens, -1)

    return attend


@pytest.fixture
def our_logits() -> Callable[[Decoder, torch.Tensor], torch.Tensor]:
    """Logits of a whole prompt ``[n]`` by the decoder under test."""

    def run(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            attend = causal_attend(decoder.spec.attention, decoder.sinks)
            return decoder.logits(decoder.hidden(ids, torch.arange(len(ids)), attend))

    return run


@pytest.fixture
def their_logits() -> Callable[..., torch.Tensor]:
    """Logits of a whole prompt ``[n]`` by transformers."""

    def run(folder: Path, ids: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager"
        )
        with torch.inference_mode():
            logits: torch.Tensor = model(ids[None]).logits[0]
        return logits

    return run
