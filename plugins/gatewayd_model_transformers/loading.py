"""Loading of a traced model, layer by layer; matrices are packed as soon as they are read.

Names of checkpoints are converted to those of modules by transformers, whose functions for it are
not documented: the extra ``transformers`` of this project names the releases that were tested.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from gatewayd_model_transformers.independence import tokens_are_independent
from gatewayd_model_transformers.layers import EngineLinear
from gatewayd_model_transformers.model import TransformersModel

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import ModelWeights
    from gatewayd_model_transformers.blueprint import Blueprint

_LAYER = re.compile(r"^(.*?\.\d+)\.")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MOST_NAMED = 5


def load(blueprint: Blueprint, weights: ModelWeights) -> TransformersModel:
    """Load the weights of a traced model.

    Raises:
        ValueError: tensors are missing, unknown or of a wrong shape, or tokens depend on others of
            their step.
    """
    loader = _Loader(blueprint, weights)
    logging.disable_progress_bar()
    done = 0
    for names in _by_layer(weights.stored):
        loader.read(names)
        done += len(names)
        weights.report(done / len(weights.stored))
    loader.finish()
    model, facts = TransformersModel(blueprint, loader.nbytes()), blueprint.facts
    kv_heads = facts.attention.num_kv_heads
    if not tokens_are_independent(model, facts.vocab_size, kv_heads, weights.device):
        raise ValueError(
            f"{facts.architecture} is not served by the model backend transformers: it counts"
            " positions by itself, or computes tokens from others of their step"
        )
    return model


def _by_layer(names: Any) -> Iterator[list[str]]:  # noqa: ANN401
    """Yield the names of tensors outside of layers, then those of each layer."""

    def layer(name: str) -> str:
        found = _LAYER.match(name)
        return found[1] if found else ""

    for _, group in groupby(sorted(names, key=layer), layer):
        yield list(group)


class _Loader:
    """Moves tensors into the model's modules."""

    def __init__(self, blueprint: Blueprint, weights: ModelWeights) -> None:
        self._model: Any = blueprint.model
        self._trace = blueprint.trace
        self._weights = weights
        model = self._model
        # Buffers stay as they were made: rounded frequencies of RoPE spoil long contexts.
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(weights.dtype)
        self._config = LoadStateDictConfig(
            device_map={"": torch.device(weights.device)},
            dtype=weights.dtype,
            dtype_plan=model._get_dtype_plan(weights.dtype),
            weight_mapping=get_model_conversion_mapping(model),
        )
        text = model.config.get_text_config()
        self._routed = {getattr(text, name, None) for name in _EXPERTS}
        self._tied = set(model.all_tied_weights_keys)
        self._info: Any = None

    def read(self, names: list[str]) -> None:
        """Read some tensors, and pack the matrices that they complete."""
        tensors = {name: self._weights.read(name) for name in names}
        info, _ = convert_and_load_state_dict_in_model(self._model, tensors, self._config)
        if self._info is None:
            self._info = info
        else:
            self._info.missing_keys &= info.missing_keys
            self._info.unexpected_keys |= info.unexpected_keys
            self._info.mismatched_keys |= info.mismatched_keys
            self._info.conversion_errors.update(info.conversion_errors)
        self._pack()

    def finish(self) -> None:
        """Tie weights, make buffers that are in no file, and pack what was tied.

        Raises:
            ValueError: see ``load``.
        """
        model, info = self._model, self._info
        # Packed parameters are no longer among those of the model.
        info.missing_keys -= {name for name in info.missing_keys if self._is_packed(name)}
        model.mark_tied_weights_as_initialized(info)
        device_map = self._config.device_map
        missing = set(info.missing_keys)
        model._adjust_missing_and_unexpected_keys(info)
        self._refuse(info)
        model._move_missing_keys_from_meta_to_device(missing, device_map, None, None)
        model._initialize_missing_keys(False)
        model.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
        self._tied = set()
        self._pack()

    def nbytes(self) -> int:
        """Bytes of the parameters and buffers that are not packed."""
        each = {id(one): one for one in (*self._model.parameters(), *self._model.buffers())}
        return sum(one.nbytes for one in each.values() if one.device.type != "meta")

    def _refuse(self, info: Any) -> None:  # noqa: ANN401
        problems = [f"cannot convert {name}" for name in sorted(info.conversion_errors)]
        for kind, names in (
            ("missing", {*info.missing_keys} - self._tied),
            ("unexpected", {*info.unexpected_keys}),
            ("wrong", {str(each[0]) for each in info.mismatched_keys}),
        ):
            if names:
                rest = len(names) - _MOST_NAMED
                more = f" and {rest} more" if rest > 0 else ""
                problems.append(f"{kind} tensors: {', '.join(sorted(names)[:_MOST_NAMED])}{more}")
        if problems:
            raise ValueError(
                f"the weights in {self._weights.folder} are not those of its config.json: "
                + "; ".join(problems)
            )

    def _is_packed(self, name: str) -> bool:
        return isinstance(self._model.get_submodule(name.rpartition(".")[0]), EngineLinear)

    def _pack(self) -> None:
        """Pack each called matrix whose weight and bias have been read."""
        for name in sorted(self._trace.called):
            module = self._model.get_submodule(name)
            if type(module) not in (torch.nn.Linear, Conv1D) or not self._is_complete(name, module):
                continue
            weight = module.weight.data
            if type(module) is Conv1D:
                weight = weight.t()
            # Routers are small, and sensitive to quantization.
            if weight.shape[0] in self._routed:
                continue
            bias = None if module.bias is None else module.bias.data
            packed = EngineLinear(self._weights.pack(name, weight, bias), weight)
            parent, _, leaf = name.rpartition(".")
            setattr(self._model.get_submodule(parent), leaf, packed)

    def _is_complete(self, name: str, module: Any) -> bool:  # noqa: ANN401
        return all(
            each.device.type != "meta" and f"{name}.{key}" not in self._tied
            for key, each in module.named_parameters()
        )
