"""Attention sinks: a score of each head that takes its part of a softmax and adds no value."""

from __future__ import annotations

import pytest
import torch

from gatewayd_engine.attention.batch_invariant import BatchInvariantAttention
from gatewayd_engine.attention.dense import DenseAttention, SharedKeys, causal
from gatewayd_engine.model.attention_shape import AttentionShape

KV_HEADS, PER_GROUP, DIM = 2, 3, 8


def attention(*, is_steady: bool, softcap: float | None = None) -> DenseAttention:
    shape = AttentionShape(1, KV_HEADS * PER_GROUP, KV_HEADS, DIM, 0.3, softcap, (0,))
    if is_steady:
        return BatchInvariantAttention(shape, torch.device("cpu"))
    return DenseAttention(shape, torch.float32, torch.device("cpu"))


def expected(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor, first: int
) -> torch.Tensor:
    """One sequence, head by head and token by token, with the sink as a column of its own."""
    out = torch.zeros_like(query)
    for token in range(len(query)):
        for head in range(KV_HEADS * PER_GROUP):
            k, v = keys[head // PER_GROUP], values[head // PER_GROUP]
            seen = first + token + 1
            scores = (k[:seen] @ query[token, head]) * 0.3
            weights = torch.softmax(torch.cat((scores, sinks[head, None])), 0)[:-1]
            out[token, head] = weights @ v[:seen]
    return out


@pytest.fixture
def numbers() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    query = torch.randn(5, KV_HEADS * PER_GROUP, DIM)
    keys, values = torch.randn(2, KV_HEADS, 9, DIM).unbind()
    return query, keys, values, torch.randn(KV_HEADS * PER_GROUP) * 2


@pytest.mark.parametrize("is_steady", [False, True])
def test_a_chunk_shares_its_weights_with_sinks(
    numbers: tuple[torch.Tensor, ...], is_steady: bool
) -> None:
    query, keys, values, sinks = numbers
    mask = causal(5, 9, 0, torch.float32, torch.device("cpu"))
    found = attention(is_steady=is_steady).chunk(query, keys, values, mask, sinks)
    assert torch.allclose(found, expected(query, keys, values, sinks, 4), atol=1e-5)


def test_a_whole_prompt_needs_no_mask(numbers: tuple[torch.Tensor, ...]) -> None:
    query, keys, values, sinks = numbers
    found = attention(is_steady=False).chunk(query, keys[:, :5], values[:, :5], None, sinks)
    assert torch.allclose(found, expected(query, keys, values, sinks, 0), atol=1e-5)


@pytest.mark.parametrize("num_shared", [0, 4])
@pytest.mark.parametrize("is_steady", [False, True])
def test_decoding_lines_share_their_weights_with_sinks(
    numbers: tuple[torch.Tensor, ...], is_steady: bool, num_shared: int
) -> None:
    query, keys, values, sinks = numbers
    one = query[:1].view(KV_HEADS, PER_GROUP, DIM)
    shared = None
    if num_shared:
        shared = SharedKeys(keys[:, :num_shared].transpose(1, 2), values[:, :num_shared])
    own_keys, own_values = keys[:, num_shared:].transpose(1, 2), values[:, num_shared:]
    found = attention(is_steady=is_steady).lines(
        *(one, own_keys, own_values, None, shared), sinks=sinks
    )
    assert torch.allclose(
        found.reshape(1, -1, DIM), expected(query[:1], keys, values, sinks, 8), atol=1e-5
    )


def test_a_sink_far_below_all_scores_changes_nothing(numbers: tuple[torch.Tensor, ...]) -> None:
    query, keys, values, _ = numbers
    mask = causal(5, 9, 0, torch.float32, torch.device("cpu"))
    none = torch.full((KV_HEADS * PER_GROUP,), -torch.inf)
    dense = attention(is_steady=False)
    with_none = dense.chunk(query, keys, values, mask, none)
    assert torch.allclose(with_none, dense.chunk(query, keys, values, mask), atol=1e-6)
