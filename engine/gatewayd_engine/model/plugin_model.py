"""A model whose layers a plugin computes: its sizes, its weights, and its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gatewayd_engine.model.attention_api import Attend, RotatingAttend
from gatewayd_engine.model.attention_shape import AttentionShape
from gatewayd_engine.model.layers import LinearOp
from gatewayd_engine.model.linears.plugin_matmul import UnfitMatmul
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.loading.tensor_sources import SafetensorsSource
from gatewayd_engine.model.weights import to_device, to_dtype
from gatewayd_hooks.model_backends import LoadedModel, ModelBackendStrategy, ModelFacts
from gatewayd_hooks.quantization import Announcement, Matrix, Stored, Weight

if TYPE_CHECKING:
    from gatewayd_engine.model.assembly.linears import Quantize
    from gatewayd_engine.model.parts import LayerParts


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """Sizes of a model that a plugin computes; implements ``ServableSpec``.

    Attributes:
        facts: from the plugin.
        quantization: None, since only float checkpoints are read.
        moe: None, since experts are among the plugin's layers.
        intermediate_size: as a guess, four times the hidden size.
    """

    facts: ModelFacts
    quantization: Announcement | None = None
    moe: None = None

    @property
    def architecture(self) -> str:
        """See ``ModelFacts``."""
        return self.facts.architecture

    @property
    def attention(self) -> AttentionShape:
        """Parameters for an attention backend."""
        return AttentionShape(**asdict(self.facts.attention))

    @property
    def num_layers(self) -> int:
        """See ``KvShape``."""
        return self.facts.attention.num_layers

    @property
    def num_heads(self) -> int:
        """See ``KvShape``."""
        return self.facts.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """See ``KvShape``."""
        return self.facts.attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        """See ``KvShape``."""
        return self.facts.attention.head_dim

    @property
    def windows(self) -> tuple[int, ...]:
        """See ``KvShape``."""
        return self.facts.attention.windows

    @property
    def hidden_size(self) -> int:
        """See ``ModelFacts``."""
        return self.facts.hidden_size

    @property
    def intermediate_size(self) -> int:
        """Guess, for the seed of measurements."""
        return 4 * self.facts.hidden_size

    @property
    def vocab_size(self) -> int:
        """See ``ModelFacts``."""
        return self.facts.vocab_size

    @property
    def max_model_len(self) -> int:
        """See ``ModelFacts``."""
        return self.facts.max_model_len

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """See ``ModelFacts``."""
        return self.facts.eos_token_ids


class PluginWeights:
    """Files of a checkpoint, and packing of its matrices; implements ``ModelWeights``.

    Args:
        folder: of the checkpoint.
        dtype: of activations.
        device: of the weights.
        parts: factory of linear layers.
        quantize: quantizes matrices; None to keep them as they are.
        progress: called with the fraction loaded so far.

    Raises:
        LoadError: a file is missing or broken.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: str,
        parts: LayerParts,
        quantize: Quantize | None,
        progress: Callable[[float], None],
    ) -> None:
        self._source = SafetensorsSource(folder)
        self.folder = str(folder)
        self.stored: Mapping[str, Stored] = self._source.stored
        self.dtype = dtype
        self.device = device
        self.report = progress
        self.packed: list[LinearOp] = []
        self._parts = parts
        self._quantize = quantize

    def read(self, name: str) -> torch.Tensor:
        """See ``ModelWeights``."""
        return self._source.read(name)

    def pack(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOp:
        """See ``ModelWeights``."""
        made: Weight = weight
        if self._quantize is not None:
            made = self._quantize(Matrix(name, *weight.shape), weight.float())
        made = to_dtype(to_device(made, self.device), self.dtype)
        try:
            linear = self._parts.linear(made, bias, self.dtype)
        except UnfitMatmul as error:
            raise LoadError(f"{name}: {error}") from error
        self.packed.append(linear)
        return linear

    def close(self) -> None:
        """Close the files."""
        self._source.close()


class PluginModel:
    """A model that a plugin computes; implements ``ServableModel``.

    Args:
        spec: of the model.
        loaded: the plugin's model.
        weights: that it was loaded from.
    """

    is_capturable = False

    def __init__(self, spec: PluginSpec, loaded: LoadedModel, weights: PluginWeights) -> None:
        self.spec = spec
        self.dtype = self.logits_dtype = weights.dtype
        self.device = torch.device(weights.device)
        self.num_parameters = spec.facts.num_parameters
        self.weight_bytes = loaded.nbytes + sum(one.nbytes for one in weights.packed)
        # GPU kernels add in whatever order is fastest: batch invariance is guaranteed on CPUs only.
        self.rounds_inputs = self.device.type == "cpu" and any(
            one.rounds_inputs for one in weights.packed
        )
        self.sinks: Sequence[torch.Tensor] | None = None
        if loaded.sinks is not None:
            self.sinks = [scores.float() for scores in loaded.sinks]
        self._loaded = loaded

    def rotation_tables(self) -> Sequence[torch.Tensor]:
        """See ``ServableModel``: rotation by nothing, as the layers apply positions themselves."""
        # One row stands for all positions.
        row = torch.tensor([[1.0, 0.0]], device=self.device)
        return [row.expand(self.spec.max_model_len, -1)] * self.spec.num_layers

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, attend: Attend | RotatingAttend
    ) -> torch.Tensor:
        """See ``ServableModel``."""
        if isinstance(attend, RotatingAttend):
            attend = _joined(attend)
        return self._loaded.hidden(ids, positions, attend)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``ServableModel``."""
        return self._loaded.embed(ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ``ServableModel``."""
        return self._loaded.logits(hidden).float()

    def raw_logits(self, hidden: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``ServableModel``."""
        logits = self._loaded.logits(hidden).to(self.logits_dtype)
        return logits if out is None else out.copy_(logits)


def _joined(attend: RotatingAttend) -> Attend:
    """Return attention that gets queries, keys and values in one tensor."""

    def call(layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        shape = (len(query), query.shape[1] + key_value.shape[1], query.shape[2])
        heads = query.new_empty(shape) if attend.room is None else attend.room.view(shape)
        torch.cat((query, key_value), 1, out=heads)
        return attend(layer, heads)

    return call


def load_plugin_model(
    strategy: ModelBackendStrategy, spec: PluginSpec, weights: PluginWeights
) -> PluginModel:
    """Load a plugin's model, whose files are closed afterwards.

    Raises:
        LoadError: the plugin cannot load it.
    """
    try:
        loaded = strategy.load(weights)
    except LoadError:
        raise
    except ValueError as error:
        raise LoadError(str(error)) from error
    finally:
        weights.close()
    return PluginModel(spec, loaded, weights)
