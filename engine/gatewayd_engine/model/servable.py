"""What runners, KV pool and attention need of a model, whichever backend has built its layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from gatewayd_engine.model.attention_api import Attend, RotatingAttend
    from gatewayd_engine.model.attention_shape import AttentionShape
    from gatewayd_engine.model.config.moe import MoeSpec
    from gatewayd_hooks.quantization import Announcement


class ServableSpec(Protocol):
    """Sizes of a model, known before its weights are read; see ``ModelSpec``."""

    @property
    def architecture(self) -> str: ...  # noqa: D102

    @property
    def num_layers(self) -> int: ...  # noqa: D102

    @property
    def num_heads(self) -> int: ...  # noqa: D102

    @property
    def num_kv_heads(self) -> int: ...  # noqa: D102

    @property
    def head_dim(self) -> int: ...  # noqa: D102

    @property
    def hidden_size(self) -> int: ...  # noqa: D102

    @property
    def intermediate_size(self) -> int: ...  # noqa: D102

    @property
    def vocab_size(self) -> int: ...  # noqa: D102

    @property
    def max_model_len(self) -> int: ...  # noqa: D102

    @property
    def windows(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def moe(self) -> MoeSpec | None: ...  # noqa: D102

    @property
    def quantization(self) -> Announcement | None: ...  # noqa: D102

    @property
    def attention(self) -> AttentionShape: ...  # noqa: D102


class ServableModel(Protocol):
    """A model with its weights; stateless between calls, which are in ``torch.inference_mode``.

    Attributes:
        dtype, device: of hidden states.
        logits_dtype: of ``raw_logits``.
        num_parameters: elements of all weights.
        weight_bytes: memory of the weights.
        rounds_inputs: whether a matrix product quantizes its input, so that the attention backend
            has to be batch-invariant.
        is_capturable: whether the layers' kernel launches depend on the number of tokens alone,
            as CUDA graphs require.
        sinks: by layer, the scores of the heads' attention sinks, shape ``[num_heads]``; None for
            none.
    """

    dtype: torch.dtype
    device: torch.device
    logits_dtype: torch.dtype
    num_parameters: int
    weight_bytes: int
    rounds_inputs: bool
    is_capturable: bool
    sinks: Sequence[torch.Tensor] | None

    @property
    def spec(self) -> ServableSpec:
        """Sizes of the model."""

    def rotation_tables(self) -> Sequence[torch.Tensor]:
        """Return the cosines and sines of each layer, for a ``RotatingAttend``.

        Each has the shape ``[max_len, rotary_dim]``, see ``Kernels.rope_append``; layers may share
        one. They take no memory in addition to the model's, which is measured before.
        """

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend | RotatingAttend
    ) -> torch.Tensor:
        """Run the layers; see ``Decoder.hidden``."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids ``[n]``; shape ``[n, hidden]``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits, float32 ``[n, vocab]``, from hidden states ``[n, hidden]``."""

    def raw_logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """Compute logits in ``logits_dtype``, into a new tensor or ``out``; see ``logits``."""
