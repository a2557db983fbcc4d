"""EAGLE's decoder layer: combines hidden states with tokens, predicts the next hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional


class FusedInput(NamedTuple):
    """Pairs of a hidden state and the token after it, combined and projected.

    Attributes:
        joined: the residual stream, shape ``[n, hidden]``.
        query: with rotary embedding, shape ``[n, heads, head_dim]``.
        key_value: keys with rotary embedding and values, shape ``[n, 2 * kv_heads, head_dim]``.
    """

    joined: torch.Tensor
    query: torch.Tensor
    key_value: torch.Tensor


class Layer:
    """Decoder layer without state between calls; the caller provides the attention mask.

    Args:
        tensors: weights.
        facts: sizes.
        num_positions: number of positions that a pair can have.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any], num_positions: int
    ) -> None:
        self.window: int = facts["window"]
        self.kv_heads: int = facts["kv_heads"]
        self.head_dim: int = facts["head_dim"]
        self._heads: int = facts["heads"]
        self._eps: float = facts["norm_eps"]
        self._join, self._join_bias = _by_input(tensors["join.weight"]), tensors["join.bias"]
        # Norm weights are folded into the following matrices.
        qkv = torch.cat((tensors["query.weight"], tensors["key_value.weight"]))
        self._qkv = _by_input(qkv * tensors["norm.weight"])
        self._out = _by_input(tensors["out.weight"])
        self._gate_up = _by_input(tensors["gate_up.weight"] * tensors["mlp_norm.weight"])
        self._down = _by_input(tensors["down.weight"])
        exponents = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        frequencies = facts["rope_theta"] ** -exponents
        angles = torch.outer(torch.arange(num_positions).float(), frequencies)
        # Element i of a head is rotated together with element i + head_dim / 2, by the same angle.
        angles = torch.cat((angles, angles), -1).to(self._out.device)
        # The sign of the rotation is folded into the first half of the sines.
        sin = angles.sin()
        sin[:, : self.head_dim // 2].neg_()
        self._rotation = torch.stack((angles.cos(), sin), 1).to(self._out.dtype)

    def enter(
        self, features: torch.Tensor, embedded: torch.Tensor, positions: torch.Tensor
    ) -> FusedInput:
        """Combine and project pairs.

        Args:
            features: hidden states, shape ``[n, hidden]``.
            embedded: embedding of the token after each, shape ``[n, hidden]``.
            positions: of the hidden states, shape ``[n]``.
        """
        pairs = torch.cat((features, embedded), -1)
        joined = torch.addmm(self._join_bias, pairs, self._join)
        heads = torch.mm(self._normed(joined), self._qkv).view(len(joined), -1, self.head_dim)
        cos, sin = self._rotation[positions].unsqueeze(2).unbind(1)
        # A view of queries and keys, which are rotated in place; values are not.
        turned = heads[:, : self._heads + self.kv_heads]
        turned.copy_(turned * cos + turned.roll(self.head_dim // 2, -1) * sin)
        return FusedInput(joined, heads[:, : self._heads], heads[:, self._heads :])

    def predict_hidden(
        self, entered: FusedInput, context: torch.Tensor, is_seen: torch.Tensor
    ) -> torch.Tensor:
        """Predict the hidden states of the positions after pairs.

        Args:
            entered: one pair of each sequence.
            context: keys and values, shape ``[n, 2 * kv_heads, length, head_dim]``.
            is_seen: attention mask including each pair's own position, shape ``[n, length]``.

        Returns:
            Shape ``[n, hidden]``.
        """
        key, value = context.chunk(2, 1)
        seen = functional.scaled_dot_product_attention(
            entered.query.unsqueeze(2),
            key,
            value,
            attn_mask=is_seen[:, None, None],
            enable_gqa=True,
        )
        x = torch.addmm(entered.joined, seen.flatten(1), self._out)
        gate, up = torch.mm(self._normed(x), self._gate_up).chunk(2, -1)
        return torch.addmm(x, functional.silu(gate).mul_(up), self._down)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the RMS norm without weights.

        Torch's own takes three times as long for a few rows.
        """
        wide = x.float()
        scale: torch.Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = scale.square_().div_(x.shape[-1]).add_(self._eps).rsqrt_()
        return (wide * scale).to(x.dtype)


def _by_input(weight: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix ``[out, in]`` to ``[in, out]``: on a CPU twice as fast for a few rows."""
    return weight.t().contiguous()
