"""Small networks that foresee a model's next tokens from its hidden states, as they are trained.

Both end in hidden states of the model, which its own head turns into tokens: none of their
weights depends on the vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gatewayd_engine.offline.train.model import NORM_EPS, rotated, rotation

MISSING = 0.5
"""Share of the rows in training whose first hidden states are missing."""
NOISE = 0.05
"""Of the hidden states' own deviation, uniformly drawn to either side."""
LATER = 0.8
"""How much each of Medusa's heads counts in training, against the one before."""
NOTHING = -100
"""A token that is not to be foreseen."""
SAMPLED = 512
"""Tokens of a batch whose foreseeing is judged."""
FORESEEN = 0.3
"""Share of the hidden states in training that EAGLE has foreseen itself."""


class MedusaHeads(nn.Module):
    """Heads that each look one token further (Cai et al. 2024, arXiv 2401.10774).

    The paper's heads are a residual block and an output matrix of their own. Here the model's
    head serves all of them, and the block has a second matrix in its place.

    Args:
        hidden: size of the model's hidden states.
        num_heads: how many tokens beyond the model's own are foreseen.
        inner: size inside each block.
    """

    def __init__(self, hidden: int, num_heads: int = 4, inner: int = 512) -> None:
        super().__init__()
        self.num_heads, self.inner = num_heads, inner
        self.up = nn.Linear(hidden, num_heads * inner)
        self.down = nn.Parameter(torch.zeros(num_heads, inner, hidden))
        # A whole residual says the model's own next token again, and says it with confidence.
        self.residual = nn.Parameter(torch.full((num_heads, 1, 1), 0.1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to ``[num_heads, n, hidden]``."""
        inner = functional.silu(self.up(features)).view(-1, self.num_heads, self.inner)
        return self.residual * features + torch.matmul(inner.transpose(0, 1), self.down)


class EagleHead(nn.Module):
    """Foresees the next hidden state from those before and the tokens chosen after them.

    Li et al. 2024, arXiv 2401.15077: one decoder layer over a hidden state joined with the
    embedding of the token that was chosen from it. Here it looks only so far back.

    Args:
        hidden: size of the model's hidden states.
        heads: of attention.
        kv_heads: of keys and values.
        head_dim: size of a head.
        inner: size inside the feed-forward part.
        window: positions that it sees, its own included.
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
        """Foresee hidden states.

        Args:
            features: of the model, shape ``[batch, length, hidden]``.
            embedded: the token after each, shape ``[batch, length, hidden]``.
            begins: the first position of each row that may be looked at, shape ``[batch]``.

        Returns:
            The hidden state of the position after each, shape ``[batch, length, hidden]``.
        """
        # Autocast makes products bfloat16; what they are added to is not rounded each time.
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
        foreseen: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return foreseen


def _window(length: int, begins: torch.Tensor, window: int) -> torch.Tensor:
    """Which keys each query sees, ``[batch, 1, length, length]``; each always sees itself."""
    at = torch.arange(length, device=begins.device)
    distance = at[:, None] - at
    near = (distance >= 0) & (distance < window)
    return (near & (at >= begins[:, None, None]) | (distance == 0)).unsqueeze(1)


def medusa_loss(
    medusa: MedusaHeads,
    head: torch.Tensor,
    features: torch.Tensor,
    ids: torch.Tensor,
    of: torch.Tensor,
) -> torch.Tensor:
    """Cross-entropy of the heads, later ones counting less.

    Args:
        medusa: to be trained.
        head: the model's head, shape ``[vocab, hidden]``.
        features: of the model, shape ``[batch, length, hidden]``.
        ids: the tokens they were computed from, shape ``[batch, length]``.
        of: tokens that are worth foreseeing, shape ``[batch, length]``.
    """
    # A hidden state says the token after it; the first head looks one further.
    told = torch.where(of, ids, NOTHING)[:, 2:]
    told = functional.pad(told, (0, medusa.num_heads - 1), value=NOTHING)
    told = told.unfold(1, medusa.num_heads, 1).flatten(0, 1)  # [positions, num_heads]
    chosen = _some((told != NOTHING).any(-1))
    logits = functional.linear(medusa(features[:, :-2].flatten(0, 1)[chosen]), head)
    losses = [
        LATER**i * functional.cross_entropy(of_head.float(), told[chosen, i])
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
    """How far foreseen hidden states, and what the head says of them, are from the model's.

    Some rows lose hidden states at their beginning, up to half of them, as those do whose tokens
    are found in the cache; the others are noisy, and some are what EAGLE itself foresees.

    Args:
        eagle: to be trained.
        head: the model's head and embedding, shape ``[vocab, hidden]``.
        features: of the model, shape ``[batch, length, hidden]``.
        ids: the tokens they were computed from, shape ``[batch, length]``.
        of: tokens that are worth foreseeing, shape ``[batch, length]``.
    """
    batch, length = ids.shape
    lost = (1 - (1 - torch.rand(batch, device=ids.device)) / MISSING).clamp(min=0)
    begins = (lost * length / 2).long()
    embedded = functional.embedding(ids[:, 1:-1], head)
    before, target = features[:, :-2], features[:, 1:-1]
    noise = (torch.rand_like(before) * 2 - 1) * (NOISE * features.std())
    given = before + noise
    with torch.no_grad():
        own = eagle(given, embedded, begins)
    is_own = torch.rand(batch, length - 3, 1, device=ids.device) < FORESEEN
    given = torch.cat((given[:, :1], torch.where(is_own, own[:, :-1].float(), given[:, 1:])), 1)
    foreseen = eagle(given, embedded, begins)
    chosen = _some(of[:, 2:].flatten())
    foreseen, target = foreseen.flatten(0, 1)[chosen], target.flatten(0, 1)[chosen]
    with torch.no_grad():
        said = torch.softmax(functional.linear(target, head).float(), -1)
    near = functional.smooth_l1_loss(foreseen.float(), target.float())
    return near + functional.cross_entropy(functional.linear(foreseen, head).float(), said)


def _some(wanted: torch.Tensor) -> torch.Tensor:
    """Places of ``SAMPLED`` elements that are true, perhaps the same more than once.

    Always as many: matrix products of ever new shapes would be prepared anew each time.
    """
    places = wanted.nonzero().squeeze(1)
    return places[torch.randint(len(places), (SAMPLED,), device=places.device)]
