"""Trainable Llama model with the weight names of Hugging Face checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

NORM_EPS = 1e-5
ROPE_THETA = 10_000.0
INIT_STD = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of a model; embeddings and head are tied."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int = 4096
    head_dim: int = 64


NANO = Size(hidden=384, layers=6, heads=6, kv_heads=2, intermediate=1024)
NANO_DRAFT = Size(hidden=128, layers=2, heads=2, kv_heads=1, intermediate=384)


class Llama(nn.Module):
    """Llama decoder from token ids to logits."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embed_tokens = nn.Embedding(size.vocab, size.hidden)
        self.layers = nn.ModuleList(_Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden, eps=NORM_EPS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Map ids ``[batch, length]`` to logits ``[batch, length, vocab]``."""
        return functional.linear(self.hidden(ids), self.embed_tokens.weight)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Map ids ``[batch, length]`` to final hidden states ``[batch, length, hidden]``."""
        x = self.embed_tokens(ids)
        cos, sin = rotation(ids.shape[1], self.size.head_dim, ids.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        normed: torch.Tensor = self.norm(x)
        return normed

    def initialize(self) -> None:
        """Initialise weights randomly; output projections are scaled down by the depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                # Two projections of each layer add to the residual stream, as in GPT-2.
                std = INIT_STD / math.sqrt(2 * self.size.layers) if writes else INIT_STD
                nn.init.normal_(parameter, std=std)


class _Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(size.hidden, eps=NORM_EPS)
        self.self_attn = _Attention(size)
        self.post_attention_layernorm = nn.RMSNorm(size.hidden, eps=NORM_EPS)
        self.mlp = _FeedForward(size)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class _Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.q_proj = nn.Linear(size.hidden, size.heads * size.head_dim, bias=False)
        self.k_proj = nn.Linear(size.hidden, size.kv_heads * size.head_dim, bias=False)
        self.v_proj = nn.Linear(size.hidden, size.kv_heads * size.head_dim, bias=False)
        self.o_proj = nn.Linear(size.heads * size.head_dim, size.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.size.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        answer = functional.scaled_dot_product_attention(
            rotated(query, cos, sin),
            rotated(key, cos, sin),
            value,
            is_causal=True,
            enable_gqa=True,
        )
        projected: torch.Tensor = self.o_proj(answer.transpose(1, 2).flatten(2))
        return projected


class _FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.up_proj = nn.Linear(size.hidden, size.intermediate, bias=False)
        self.down_proj = nn.Linear(size.intermediate, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mapped: torch.Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return mapped


def rotation(length: int, head_dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute rotary cosines and sines of positions from 0, each ``[length, head_dim]``."""
    exponents = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    angles = torch.outer(torch.arange(length, device=device).float(), ROPE_THETA**-exponents)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary embedding to heads ``[..., length, head_dim]``."""
    first, second = heads.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    return heads * cos.to(heads.dtype) + turned * sin.to(heads.dtype)
