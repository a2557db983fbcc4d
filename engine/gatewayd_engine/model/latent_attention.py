"""Multi-head latent attention (MLA) in its absorbed form: attention over the cached latents.

A key of a head is the product of a token's latent and the head's key matrix, and a value that with
its value matrix. Instead of expanding latents, the key matrix is applied to the query, and the
value matrix to the attended latent: to an attention backend this is a model with one KV head, whose
keys are the records ``[latent, rotated shared key]`` and serve as values as well. Of what is
attended, only the latent is used. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.batch_invariance import BatchInvariantMode
from gatewayd_engine.model.layers import WIDENED

if TYPE_CHECKING:
    from gatewayd_engine.model.attention_api import Attend
    from gatewayd_engine.model.config.latent import LatentSpec
    from gatewayd_engine.model.decoder import OfPositions
    from gatewayd_engine.model.layers import LinearOp
    from gatewayd_engine.model.rotary_embedding import Rotary


class HeadProduct(BatchInvariantMode):
    """Product of each head with a matrix of its own; batch-invariant in float64.

    Args:
        weight: shape ``[heads, in, out]``.
    """

    __slots__ = ("_weight",)

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self._weight = weight.contiguous()

    @property
    def nbytes(self) -> int:
        """Size of the matrices in bytes."""
        return self._weight.nbytes

    def into(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Map ``[n, heads, in]`` into ``out``, ``[n, heads, out]``, whose numbers are adjacent."""
        torch.bmm(x.transpose(0, 1), self._weight, out=out.transpose(0, 1))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, heads, in]`` to ``[n, heads, out]``, a view."""
        by_head = x.transpose(0, 1)
        if not self.is_steady:
            return torch.bmm(by_head, self._weight).transpose(0, 1)
        out = x.new_empty(*by_head.shape[:2], self._weight.shape[2])
        # As in ``Linear``: rounding nearly always removes what depends on the batch (ADR 0035), and
        # a few matrices are converted at a time.
        step = max(1, WIDENED // self._weight[0].numel())
        for begin in range(0, len(out), step):
            some = slice(begin, begin + step)
            out[some] = torch.bmm(by_head[some].double(), self._weight[some].double())
        return out.transpose(0, 1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LatentQueries:
    """Second half of a query projection of low rank: the norm of the latent, then the matrix."""

    norm: Callable[[torch.Tensor], torch.Tensor]
    expand: LinearOp

    def __call__(self, latent: torch.Tensor) -> torch.Tensor:
        """Map latents ``[n, query_rank]`` to queries ``[n, num_heads * key_dim]``."""
        return self.expand(self.norm(latent))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LatentAttention:
    """Projections, norms and rotary embedding of latent attention around the step's ``attend``.

    Attributes:
        entry: projection to queries or their latent, then to the KV latent and the shared key.
        out: the output projection, which the decoder layer applies.
        queries: expands the queries' latent; None if ``entry`` projects to the queries themselves.
        norm: of the KV latent.
        keys: maps the part of a query that is not rotated to a query for latents.
        values: maps attended latents to values.
    """

    _index: int
    _sizes: LatentSpec
    _rotary: Rotary
    entry: LinearOp
    out: LinearOp
    queries: LatentQueries | None
    norm: Callable[[torch.Tensor], torch.Tensor]
    keys: HeadProduct
    values: HeadProduct

    def __call__(
        self, x: torch.Tensor, of: OfPositions, attend: Attend | RotatingAttend
    ) -> torch.Tensor:
        """See ``LayerAttention``.

        Raises:
            TypeError: neither this nor ``attend`` would rotate.
        """
        # The input may be in a form that only the first matrix reads.
        sizes, joined = self._sizes, self.entry(x)
        num_tokens = joined.shape[0]
        split = joined.shape[1] - sizes.record_dim
        query, latent, shared = torch.split_with_sizes(
            joined, (split, sizes.rank, sizes.rope_dim), 1
        )
        if self.queries is not None:
            query = self.queries(query)
        by_head = query.view(num_tokens, -1, sizes.key_dim)
        plain, rotated = torch.split_with_sizes(by_head, (sizes.nope_dim, sizes.rope_dim), 2)
        if isinstance(attend, RotatingAttend):
            return self._on_device(plain, rotated, latent, shared, attend)
        if of.rotation is None:
            raise TypeError("latent attention is given no rotation, and attention rotates nothing")
        heads = joined.new_empty(num_tokens, plain.shape[1], sizes.record_dim)
        heads[..., : sizes.rank] = self.keys(plain)
        heads[..., sizes.rank :] = rotated
        record = joined.new_empty(num_tokens, 1, sizes.record_dim)
        record[:, 0, : sizes.rank] = self.norm(latent)
        record[:, 0, sizes.rank :] = shared
        for each in (heads, record):
            self._rotary.rotate(self._rotary.view(each[..., sizes.rank :]), of.rotation)
        attended = attend(self._index, heads, record).view(heads.shape)
        return self.values(attended[..., : sizes.rank]).flatten(1)

    def _on_device(
        self,
        plain: torch.Tensor,
        rotated: torch.Tensor,
        latent: torch.Tensor,
        shared: torch.Tensor,
        attend: RotatingAttend,
    ) -> torch.Tensor:
        """Attend with fused rotary embedding; products write where they are read.

        Args:
            plain: part of the queries that is not rotated, ``[num_tokens, heads, nope_dim]``.
            rotated: the other part, not yet rotated, ``[num_tokens, heads, rope_dim]``.
            latent: KV latents before their norm, ``[num_tokens, rank]``.
            shared: shared keys, not yet rotated, ``[num_tokens, rope_dim]``.
            attend: attention of this step.
        """
        sizes, (num_tokens, num_heads) = self._sizes, plain.shape[:2]
        shape, room = (num_tokens, num_heads + 1, sizes.record_dim), attend.room
        heads = plain.new_empty(shape) if room is None else room.view(shape)
        self.keys.into(plain, heads[:, :num_heads, : sizes.rank])
        heads[:, :num_heads, sizes.rank :] = rotated
        heads[:, num_heads, : sizes.rank] = self.norm(latent)
        heads[:, num_heads, sizes.rank :] = shared
        attended = attend(self._index, heads).view(num_tokens, num_heads, -1)
        out = plain.new_empty(num_tokens, num_heads, sizes.value_dim)
        self.values.into(attended, out)
        return out.flatten(1)
