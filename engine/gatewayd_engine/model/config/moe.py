"""Mixture-of-experts settings of a model, read from config.json. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_engine.model.config.families import Family
from gatewayd_engine.model.json_fields import JsonFields, SpecError

MOST_EXPERTS = 1 << 18
"""Limit of experts in all layers together: tensor names are generated before files are opened."""


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Mixture-of-experts settings of a model.

    Attributes:
        num_experts: per layer.
        top_k: experts per token.
        renormalize: whether the weights of the selected experts are scaled to sum to one.
        intermediate_size: of an expert.
        layers: per layer, whether it has experts rather than one feed-forward part.
    """

    num_experts: int
    top_k: int
    renormalize: bool
    intermediate_size: int
    layers: tuple[bool, ...]


def read_moe(config: JsonFields, family: Family, num_layers: int) -> MoeSpec | None:
    """Read the settings; None for a dense model.

    Raises:
        SpecError: a value is missing, or beyond its limit.
    """
    if family.experts is None:
        return None
    is_qwen = family.experts == "qwen"
    # transformers writes num_local_experts for both families since its version 5.
    num_experts = config.size(
        "num_local_experts", config.size("num_experts", 128 if is_qwen else 8)
    )
    # Before any name is generated: a config.json must not take all memory.
    if num_experts * num_layers > MOST_EXPERTS:
        raise SpecError(
            f"{config.where}: {num_experts} experts in each of {num_layers} layers are more than"
            f" {MOST_EXPERTS}"
        )
    top_k = config.size("num_experts_per_tok")
    if top_k > num_experts:
        raise SpecError(
            f"{config.where}: num_experts_per_tok is {top_k}, more than {num_experts} experts"
        )
    if not is_qwen:
        size = config.size("intermediate_size")
        return MoeSpec(num_experts, top_k, True, size, (True,) * num_layers)
    step, dense = config.size("decoder_sparse_step", 1), config.indices("mlp_only_layers")
    return MoeSpec(
        num_experts,
        top_k,
        config.flag("norm_topk_prob", False),
        config.size("moe_intermediate_size"),
        tuple(i not in dense and (i + 1) % step == 0 for i in range(num_layers)),
    )
