"""Draft heads, Medusa and EAGLE, and their training losses.

Both predict hidden states, which the model's own head turns into tokens, so that none of their
weights depends on the vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gatewayd_engine.offline.train.model import NORM_EPS, rotated, rotation

MISSING = 0.5
"""Fraction of training rows whose first hidden states are missing."""
NOISE = 0.05
"""Amplitude of the uniform noise, relative to the hidden states' standard deviation."""
LATER = 0.8
"""Loss weight of each Medusa head relative to the previous one."""
NOTHING = -100
"""Label of tokens that are excluded from the loss."""
SAMPLED = 512
"""Tokens of a batch that the loss is computed on."""
PREDICTED = 0.3
"""Fraction of EAGLE's input states in training that are its own predictions."""


class MedusaHeads(nn.Module):
    """Heads that each predict one token further ahead (Cai et al. 2024, arXiv 2401.10774).

    The paper's heads are a residual block and an output matrix of their own. Here all of them share
    the model's head, and the block has a second matrix instead.

    Args:
        hidden: size of the model's hidden states.
        num_heads: number of tokens predicted beyond the model's own.
        inner: size inside each block.
    """

    def __init__(self, hidden: int, num_heads: int = 4, inner: int = 512) -> None:
        super().__init__()
        self.num_heads, self.inner = num_heads, inner
        self.up = nn.Linear(hidden, num_heads * inner)
        # Zero, so that training starts from the residual alone.
        self.down = nn.Parameter(torch.zeros(num_heads, inner, hidden))
        # Small, because a full residual would predict the model's own next token confidently.
        self.residual = nn.Parameter(torch.full((num_heads, 1, 1), 0.1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to ``[num_heads, n, hidden]``."""
        inner = functional.silu(self.up(features)).view(-1, self.num_heads, self.inner)
        return self.residual * features + torch.matmul(inner.transpose(0, 1), self.down)


class EagleHead(nn.Module):
    """EAGLE head: predicts the next hidden state from previous ones and the tokens sampled.

    Li et al. 2024, arXiv 2401.15077: one decoder layer over hidden states, each concatenated with
    the embedding of the token sampled from it. Here with a sliding attention window.

    Args:
        hidden: size of the model's hidden states.
        heads: of attention.
        kv_heads: of keys and values.
        head_dim: size of a head.
        inner: size inside the feed-forward part.
        window: size of the attention window, own position included.
    """

    def __init__(
        self,
        hidden: int,
        heads: int = 6,
        kv_heads: int = 2,
        head_dim: int = 64,
        inner: int = 512,
        window: int = 64,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.inner, self.window = inner, window
        self.join = nn.Linear(2 * hidden, hidden)
        self.norm = nn.RMSNorm(hidden, eps=NORM_EPS)
        self.query = nn.Linear(hidden, heads * head_dim, bias=False)
        self.key_value = nn.Linear(hidden, 2 * kv_heads * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)
        self.mlp_norm = nn.RMSNorm(hidden, eps=NORM_EPS)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(
        self, features: torch.Tensor, embedded: torch.Tensor, begins: torch.Tensor
    ) -> torch.Tensor:
        """Predict hidden states.

        Args:
            features: hidden states of the model, shape ``[batch, length, hidden]``.
            embedded: embedding of the token after each, shape ``[batch, length, hidden]``.
            begins: first position of each row that can be attended to, shape ``[batch]``.

        Returns:
            The hidden state of the position after each, shape ``[batch, length, hidden]``.
        """
        # Autocast computes products in bfloat16; the residual stream stays float32.
        x = self.join(torch.cat((features, embedded), -1)).float()
        normed = self.norm(x)
        query = self.query(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        both = self.key_value(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        key, value = both.chunk(2, 1)
        cos, sin = rotation(x.shape[1], self.head_dim, x.device)
        seen = functional.scaled_dot_product_attention(
            rotated(query, cos, sin),
            rotated(key, cos, sin),
            value,
            attn_mask=_window(x.shape[1], begins, self.window),
            enable_gqa=True,
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        predicted: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return predicted


def _window(length: int, begins: torch.Tensor, window: int) -> torch.Tensor:
    """Make the attention mask, ``[batch, 1, length, length]``; each token attends to itself."""
    at = torch.arange(length, device=begins.device)
    distance = at[:, None] - at
    near = (distance >= 0) & (distance < window)
    # A row of the mask without any position would make softmax NaN.
    return (near & (at >= begins[:, None, None]) | (distance == 0)).unsqueeze(1)


def medusa_loss(
    medusa: MedusaHeads,
    head: torch.Tensor,
    features: torch.Tensor,
    ids: torch.Tensor,
    of: torch.Tensor,
) -> torch.Tensor:
    """Compute the cross-entropy of the heads, with lower weights for later ones.

    Args:
        medusa: to be trained.
        head: the model's head, shape ``[vocab, hidden]``.
        features: hidden states of the model, shape ``[batch, length, hidden]``.
        ids: the tokens they were computed from, shape ``[batch, length]``.
        of: mask of the tokens to predict, shape ``[batch, length]``.
    """
    # The model predicts the next token from a hidden state; the first head the one after it.
    labels = torch.where(of, ids, NOTHING)[:, 2:]
    labels = functional.pad(labels, (0, medusa.num_heads - 1), value=NOTHING)
    labels = labels.unfold(1, medusa.num_heads, 1).flatten(0, 1)  # [positions, num_heads]
    chosen = _sample_positions((labels != NOTHING).any(-1))
    logits = functional.linear(medusa(features[:, :-2].flatten(0, 1)[chosen]), head)
    losses = [
        LATER**i * functional.cross_entropy(of_head.float(), labels[chosen, i])
        for i, of_head in enumerate(logits)
    ]
    return torch.stack(losses).sum()


def eagle_loss(
    eagle: EagleHead,
    head: torch.Tensor,
    features: torch.Tensor,
    ids: torch.Tensor,
    of: torch.Tensor,
) -> torch.Tensor:
    """Compute the loss of predicted hidden states and of the token probabilities they give.

    Some rows lack up to half of their hidden states, from the start, like sequences with a prefix
    cache hit; the others get noise, and some states are EAGLE's own predictions.

    Args:
        eagle: to be trained.
        head: the model's head and embedding, shape ``[vocab, hidden]``.
        features: hidden states of the model, shape ``[batch, length, hidden]``.
        ids: the tokens they were computed from, shape ``[batch, length]``.
        of: mask of the tokens to predict, shape ``[batch, length]``.
    """
    batch, length = ids.shape
    # Uniform in (0, 1) for a share ``MISSING`` of the rows, 0 for the others.
    lost = (1 - (1 - torch.rand(batch, device=ids.device)) / MISSING).clamp(min=0)
    begins = (lost * length / 2).long()
    embedded = functional.embedding(ids[:, 1:-1], head)
    before, target = features[:, :-2], features[:, 1:-1]
    noise = (torch.rand_like(before) * 2 - 1) * (NOISE * features.std())
    given = before + noise
    with torch.no_grad():
        # First pass, without gradients: predictions that replace some inputs of the second.
        own = eagle(given, embedded, begins)
    # The first state has no prediction; others are replaced at random, as when drafting several
    # tokens from predicted states.
    is_own = torch.rand(batch, length - 3, 1, device=ids.device) < PREDICTED
    given = torch.cat((given[:, :1], torch.where(is_own, own[:, :-1].float(), given[:, 1:])), 1)
    predicted = eagle(given, embedded, begins)
    chosen = _sample_positions(of[:, 2:].flatten())
    predicted, target = predicted.flatten(0, 1)[chosen], target.flatten(0, 1)[chosen]
    with torch.no_grad():
        expected = torch.softmax(functional.linear(target, head).float(), -1)
    distance = functional.smooth_l1_loss(predicted.float(), target.float())
    logits = functional.linear(predicted, head).float()
    # Both losses of EAGLE: regression of the hidden state, and the token distribution it gives.
    return distance + functional.cross_entropy(logits, expected)


def _sample_positions(wanted: torch.Tensor) -> torch.Tensor:
    """Sample ``SAMPLED`` indices of true elements, with replacement.

    The number is constant, because matrix products of a new shape have a high setup cost.
    """
    indices = wanted.nonzero().squeeze(1)
    return indices[torch.randint(len(indices), (SAMPLED,), device=indices.device)]
