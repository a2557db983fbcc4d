"""A loaded model of transformers, called with the flat tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from gatewayd_model_transformers.attention import attending
from gatewayd_model_transformers.layers import Body
from gatewayd_model_transformers.tracing import Given

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import Attends
    from gatewayd_model_transformers.blueprint import Blueprint


class TransformersModel:
    """Layers and head of a traced model; implements ``LoadedModel``.

    Args:
        blueprint: of the model, whose parameters have been loaded.
        nbytes: of weights that are not packed.
    """

    def __init__(self, blueprint: Blueprint, nbytes: int) -> None:
        self.nbytes = nbytes
        self._model: Any = blueprint.model
        self._layers = blueprint.layers
        self._first_position = blueprint.first_position
        trace, shape = blueprint.trace, blueprint.facts.attention
        self._inner = self._model.get_submodule(trace.body)
        self._body = Body(self._inner, trace.output)
        parent, _, leaf = trace.body.rpartition(".")
        setattr(self._model.get_submodule(parent), leaf, self._body)
        self._constants = {
            key: value for key, value in trace.arguments.items() if not isinstance(value, Given)
        }
        self._inputs = {
            value.name: key for key, value in trace.arguments.items() if isinstance(value, Given)
        }
        self.sinks: Sequence[torch.Tensor] | None = None
        if blueprint.facts.has_sinks:
            self.sinks = [
                self._sinks(call.sinks, layer.per_group, shape.num_heads, shape.num_kv_heads)
                for call, layer in zip(trace.calls, self._layers, strict=True)
            ]

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, attend: Attends) -> torch.Tensor:
        """See ``LoadedModel``."""
        if self._first_position:
            positions = positions + self._first_position
        given = {"input_ids": ids.unsqueeze(0), "position_ids": positions.unsqueeze(0)}
        inputs = {key: given.get(name) for name, key in self._inputs.items()}
        with attending(self._layers, attend):
            output = self._inner(**self._constants, **inputs)
        hidden: torch.Tensor = output[0]
        return hidden.squeeze(0)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """See ``LoadedModel``."""
        rows: torch.Tensor = self._inner.get_input_embeddings()(ids)
        return rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See ``LoadedModel``."""
        self._body.given = hidden.unsqueeze(0)
        ids = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
        try:
            logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits
        finally:
            self._body.given = None
        return logits.squeeze(0)

    def _sinks(
        self, name: str | None, per_group: int, num_heads: int, num_kv_heads: int
    ) -> torch.Tensor:
        if name is None:
            # No sink: it adds nothing to a softmax.
            some = next(self._model.parameters())
            return torch.full((num_heads,), -torch.inf, dtype=torch.float32, device=some.device)
        scores: torch.Tensor = self._model.get_parameter(name).detach().float()
        groups = scores.view(-1, per_group)
        more = num_heads // num_kv_heads - per_group, num_kv_heads - len(groups)
        return F.pad(groups, (0, more[0], 0, more[1]), value=-torch.inf).flatten()
