"""Model backends: layers of a checkpoint, computed over the engine's KV cache and matrices.

A backend knows architectures; the engine knows everything else: the KV cache and its pages,
attention, scheduling, sampling, quantized matrices. ``native``, the engine's own decoder, is none
of these plugins: ``[model] backend = "auto"`` asks for one only where ``native`` cannot serve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gatewayd_hooks.resources import KvShape
from gatewayd_hooks.strategy import Strategy

if TYPE_CHECKING:
    import torch

    from gatewayd_hooks.quantization import Stored


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Description of a model, made before its weights are read.

    Attributes:
        architecture: name, for messages.
        num_parameters: elements of all weights.
        vocab_size: logits of a token.
        hidden_size: size of the hidden states.
        max_model_len: context length in tokens.
        eos_token_ids: end tokens, sorted.
        attention: sizes of the keys and values that ``Attends`` gets; ``num_layers`` is the number
            of its calls in a step.
        has_sinks: whether each head of each layer has an attention sink.
    """

    architecture: str
    num_parameters: int
    vocab_size: int
    hidden_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    attention: KvShape
    has_sinks: bool = False


class Attends(Protocol):
    """Causal attention of one step: appends to the KV cache, then attends to it."""

    def __call__(self, layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """Append this step's keys and values, then attend.

        Args:
            layer: 0 in the first call of a step, one more in each further one.
            query: with positions applied, shape ``[num_tokens, num_heads, head_dim]``.
            key_value: keys with positions applied, then values, shape
                ``[num_tokens, 2 * num_kv_heads, head_dim]``; keys alone where ``KvShape`` says that
                these are the values, shape ``[num_tokens, num_kv_heads, head_dim]``.

        Returns:
            Shape ``[num_tokens, num_heads * head_dim]``.
        """


class PackedMatrix(Protocol):
    """Matrix in the form that the device multiplies fastest, perhaps quantized, with its bias."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[n, in]`` to a new ``[n, out]``."""


class ModelWeights(Protocol):
    """Weights of a checkpoint, and packing of matrices, for a backend that loads a model.

    Attributes:
        folder: of the checkpoint.
        stored: forms of all tensors in its files, by name.
        dtype: of activations and of weights that are not packed.
        device: ``cpu`` or ``cuda:N``.
    """

    folder: str
    stored: Mapping[str, Stored]
    dtype: torch.dtype
    device: str

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor as stored, on the CPU.

        Raises:
            ValueError: it cannot be read; the message names its file.
        """

    def pack(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedMatrix:
        """Quantize and pack a matrix ``[out, in]``, which the caller should release afterwards.

        Args:
            name: as in ``Matrix``, for quantizers and ``[quantizer] skip``.
            weight: float.
            bias: float, shape ``[out]``.
        """

    def report(self, fraction: float) -> None:
        """Report the fraction that has been loaded, up to 1."""


class LoadedModel(Protocol):
    """A model with its weights; stateless between calls, which are in ``torch.inference_mode``.

    Attributes:
        sinks: by layer, the score of each query head's attention sink, float, shape
            ``[num_heads]``; None unless ``ModelFacts.has_sinks``.
        nbytes: memory of the weights that it has not packed, in bytes.
    """

    sinks: Sequence[torch.Tensor] | None
    nbytes: int

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attends) -> torch.Tensor:
        """Run the layers on the tokens of all sequences of a step, which only ``attend`` separates.

        A token's output depends on its id, its position and on ``attend``, and on nothing else.

        Args:
            ids: int64, shape ``[num_tokens]``.
            positions: int64, shape ``[num_tokens]``.
            attend: attention of this step; each call is for the next layer.

        Returns:
            Input of the head, after the final norm, shape ``[num_tokens, hidden_size]``.
        """

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embed token ids ``[n]``; shape ``[n, hidden_size]``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits ``[n, vocab_size]`` from hidden states ``[n, hidden_size]``."""


@dataclass(frozen=True, slots=True)
class ModelBackendResources:
    """Passed by the host to a model backend in ``open``, before anything of the model is read.

    Attributes:
        folder: of the checkpoint.
        device: ``cpu`` or ``cuda:N``.
        max_model_len: context length to serve; None for the model's own.
    """

    folder: str
    device: str
    max_model_len: int | None


class ModelBackendStrategy(Strategy, Protocol):
    """Serves checkpoints of architectures that the engine's own decoder has not.

    It is used while the model is loaded, and cannot be replaced while the engine runs. Any
    exception aborts the start; operators read its message.
    """

    def open(self, resources: ModelBackendResources) -> None:
        """Remember where the model is; import the library that computes it.

        Raises:
            ValueError: the library is not installed; the message says how to install it.
        """

    def facts(self) -> ModelFacts:
        """Describe the model, from its config.json alone.

        Raises:
            ValueError: it cannot be served; the message is one sentence that names the architecture
                and the reason.
        """

    def load(self, weights: ModelWeights) -> LoadedModel:
        """Load the weights; called at most once, after ``facts``.

        Raises:
            ValueError: tensors are missing or of a wrong shape; the message names them.
        """
