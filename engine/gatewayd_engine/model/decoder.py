"""The decoder: token ids and positions in, hidden states and logits out.

The tokens of all sequences of a step are flattened into one dimension; only ``attend`` knows the
sequence boundaries. The caller must be in ``torch.inference_mode``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from gatewayd_engine.model.attention_api import RotatingAttend
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.qkv_heads import HeadBuffers
from gatewayd_engine.model.rotary_embedding import Rotary

if TYPE_CHECKING:
    from gatewayd_engine.model.attention_api import Attend
    from gatewayd_engine.model.config.rope import QueryScale
    from gatewayd_engine.model.embedding_table import EmbeddingTable
    from gatewayd_engine.model.parts import Norm
    from gatewayd_engine.model.spec import ModelSpec


class OfPositions(NamedTuple):
    """What the layers of a step need of its tokens' positions.

    Attributes:
        rotation: see ``Rotary.at``; None if attention rotates.
        query_scale: factors of the queries, shape ``[num_tokens, 1, 1]``; None for none.
    """

    rotation: torch.Tensor | None = None
    query_scale: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attention:
    """QKV projection, per-head norms and rotary embedding, then the step's ``attend``.

    Attributes:
        entry: the QKV projection, the only consumer of the layer's normed input.
        out: the output projection, which the decoder layer applies.
        qk_norm: in-place norm of each head of queries and keys; None for none.
    """

    _index: int
    _rotary: Rotary
    _buffers: HeadBuffers
    entry: LinearOp
    out: LinearOp
    qk_norm: Callable[[torch.Tensor], object] | None

    def __call__(
        self, x: torch.Tensor, of: OfPositions, attend: Attend | RotatingAttend
    ) -> torch.Tensor:
        """Attend from ``[num_tokens, hidden]``.

        Returns:
            The input of ``out``, shape ``[num_tokens, num_heads * head_dim]``.
        """
        if isinstance(attend, RotatingAttend):
            # Rotary embedding is fused with the append to the KV pool: heads are not rotated here.
            joined = self._buffers.split(self.entry(x, out=attend.room))
            if self.qk_norm is not None:
                self.qk_norm(joined[:, : self._buffers.num_rotated])
            if of.query_scale is not None:
                joined[:, : self._buffers.num_heads].mul_(of.query_scale)
            return attend(self._index, joined)
        # Projection, norms and rotation in one buffer, through views that are cached.
        heads = self._buffers.like(x)
        self.entry(x, out=heads.flat)
        if self.qk_norm is not None:
            self.qk_norm(heads.query_key)
        if of.rotation is not None:
            self._rotary.rotate(heads.rotated, of.rotation)
        if of.query_scale is not None:
            heads.query.mul_(of.query_scale)
        return attend(self._index, heads.query, heads.key_value)


class LayerAttention(Protocol):
    """Attention of a layer, up to its output projection."""

    @property
    def entry(self) -> LinearOp:
        """The only matrix that consumes the layer's normed input."""

    @property
    def out(self) -> LinearOp:
        """The output projection, which the decoder layer applies."""

    def __call__(
        self, x: torch.Tensor, of: OfPositions, attend: Attend | RotatingAttend
    ) -> torch.Tensor:
        """Map ``[num_tokens, hidden]`` to the input of ``out``."""


class Mlp(Protocol):
    """A feed-forward part: dense or a mixture of experts."""

    @property
    def entry(self) -> LinearOp | None:
        """The only matrix that consumes the part's input; None if there are several."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, hidden]`` to a new ``[n, hidden]``."""

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DecoderLayer:
    """Attention and feed-forward parts, each added to the residual stream.

    Attributes:
        attention, mlp: the parts.
        before_attention, before_mlp: norms of their inputs.
        after_attention, after_mlp: norms of their outputs; None for none.
    """

    attention: LayerAttention
    mlp: Mlp
    before_attention: Norm
    before_mlp: Norm
    after_attention: Norm | None
    after_mlp: Norm | None

    def __call__(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        of: OfPositions,
        attend: Attend | RotatingAttend,
    ) -> torch.Tensor | None:
        """Advance the residual stream ``[num_tokens, hidden]`` in place.

        Args:
            x: the residual stream.
            delta: output of the previous layer still to be added to ``x``; None for nothing.
            of: what follows from the tokens' positions.
            attend: attention of this step.

        Returns:
            What is still to be added to ``x``; None for nothing.
        """
        attended = self.attention(self.before_attention(x, delta), of, attend)
        if self.after_attention is None:
            # Added by the product itself, or deferred to the next norm, which reads the stream.
            delta = self.attention.out.add_to(x, attended)
        else:
            # A norm needs the whole output before it is added.
            delta = self.after_attention(self.attention.out(attended))
        normed = self.before_mlp(x, delta)
        if self.after_mlp is None:
            return self.mlp.add_to(x, normed)
        return self.after_mlp(self.mlp(normed))


class Decoder:
    """A model with its weights; stateless between calls.

    Attributes:
        rounds_inputs: whether a matrix product quantizes its input, so that the attention backend
            has to be batch-invariant.
        is_capturable: whether the layers' kernel launches depend on the number of tokens alone,
            as CUDA graphs require.
        layers, norm, head: the parts, for fused steps.
        rotaries: rotary embedding of each layer, the same object where settings are equal.
        sinks: see ``ServableModel``.
    """

    def __init__(
        self,
        spec: ModelSpec,
        embedding: EmbeddingTable,
        rotaries: Sequence[Rotary],
        layers: Sequence[DecoderLayer],
        norm: Norm,
        head: LinearOp,
        num_parameters: int,
        weight_bytes: int,
        *,
        rounds_inputs: bool = False,
        is_capturable: bool = True,
        sinks: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.spec = spec
        self.dtype = embedding.dtype
        self.device = embedding.device
        self.num_parameters = num_parameters
        self.weight_bytes = weight_bytes
        self.rounds_inputs = rounds_inputs
        self.is_capturable = is_capturable
        self.sinks = sinks
        self._embedding = embedding
        self.rotaries = rotaries
        self._rotaries = list(dict.fromkeys(rotaries))
        self._rotation_of_layer = [self._rotaries.index(rotary) for rotary in rotaries]
        self.layers = layers
        self.norm = norm
        self.head = head
        scale = spec.embedding_scale
        self.logits_dtype = self.dtype if spec.logit_softcap is None else torch.float32
        # Rounded as the weights are: models were trained with the product in their own type.
        self._scale = None if scale is None else torch.tensor(scale, dtype=self.dtype).item()

    def rotation_tables(self) -> Sequence[torch.Tensor]:
        """See ``ServableModel``."""
        tables = [rotary.table() for rotary in self._rotaries]
        return [tables[index] for index in self._rotation_of_layer]

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend | RotatingAttend
    ) -> torch.Tensor:
        """Run the layers.

        Args:
            ids: int64, shape ``[num_tokens]``, each below the vocabulary's size.
            positions: int64, shape ``[num_tokens]``, each below ``max_model_len``.
            attend: attention of this step.

        Returns:
            After the final norm, shape ``[num_tokens, hidden]``.
        """
        x = self.embed(ids)
        of_layers = self._of_positions(positions, rotates=isinstance(attend, RotatingAttend))
        delta = None
        for layer, of in zip(self.layers, of_layers, strict=True):
            delta = layer(x, delta, of, attend)
        return self.norm(x, delta)

    def _of_positions(self, positions: torch.Tensor, *, rotates: bool) -> list[OfPositions]:
        """Gather what each layer needs, once for all layers that need the same."""
        scale = self.spec.query_scale
        made = [
            of_positions(rotary, scale, positions, rotates=rotates) for rotary in self._rotaries
        ]
        return [made[index] for index in self._rotation_of_layer]

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids ``[n]``, scaled if the model does so; shape ``[n, hidden]``."""
        x = self._embedding.rows(ids)
        if self._scale is not None:
            x.mul_(self._scale)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits, float32 ``[n, vocab]``, from hidden states ``[n, hidden]``."""
        return self.raw_logits(hidden).float()

    def raw_logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute logits in ``logits_dtype``, into a new tensor or ``out``; see ``logits``."""
        cap = self.spec.logit_softcap
        if cap is None:
            return self.head(hidden, out=out)
        # In float32: near the cap, bfloat16 would make different logits equal.
        logits = self.head(hidden).float().div_(cap).tanh_()
        return torch.mul(logits, cap, out=out)


def of_positions(
    rotary: Rotary, scale: QueryScale | None, positions: torch.Tensor, *, rotates: bool
) -> OfPositions:
    """Gather what a layer needs of positions ``[num_tokens]``.

    Args:
        rotary: of the layer.
        scale: of the model's layers without rotary embedding. Source: arXiv 2501.19399, section 2.
        positions: of the tokens.
        rotates: whether attention rotates.
    """
    rotation = None if rotates else rotary.at(positions)
    if scale is None or rotary.is_rotating:
        return OfPositions(rotation)
    steps = torch.floor((positions.float() + 1.0) / scale.interval)
    return OfPositions(rotation, (torch.log1p(steps) * scale.factor + 1.0).view(-1, 1, 1))
