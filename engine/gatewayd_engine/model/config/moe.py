"""Mixture-of-experts settings of a model, read from config.json. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatewayd_engine.model.config.families import Family
from gatewayd_engine.model.json_fields import JsonFields, SpecError

MOST_EXPERTS = 1 << 18
"""Limit of experts in all layers together: tensor names are generated before files are opened."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Scores of a layer's experts, and the choice among them.

    Attributes:
        top_k: experts per token.
        scoring: function of the router's logits, over all experts or for each.
        renormalize: whether the weights of the chosen experts are scaled to sum to one; of a
            softmax, that is the softmax over the chosen experts.
        scale: factor of the weights, after that.
        has_correction: whether a stored bias for each expert is added to the scores for the choice,
            though not to the weights.
        groups: groups of adjacent experts, all of one size; 1 for none.
        top_groups: groups per token, from which its experts are chosen.
        ranked_by: highest scores of a group whose sum ranks it.
        in_float32: whether logits are computed in float32, whatever the decoder's dtype.
        weighs_inputs: whether weights multiply the inputs of experts, not their outputs.
    """

    top_k: int
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = True
    scale: float = 1.0
    has_correction: bool = False
    groups: int = 1
    top_groups: int = 1
    ranked_by: int = 1
    in_float32: bool = False
    weighs_inputs: bool = False

    @property
    def is_softmax(self) -> bool:
        """Whether the weights are a softmax, renormalized or not, and nothing else."""
        others = (self.has_correction, self.groups > 1, self.scale != 1.0)
        return self.scoring == "softmax" and not any(others)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The part of a layer that all tokens visit, in addition to the chosen experts.

    Several shared experts are stored as one of their sizes together.

    Attributes:
        name: of the module within the feed-forward part.
        intermediate_size: of all of them together.
        gate: name of the linear layer whose sigmoid scales the output; None for none.
    """

    name: str
    intermediate_size: int
    gate: str | None = None


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """Numbers of the gated activation ``(up + 1) * gate * sigmoid(sharpness * gate)``.

    Attributes:
        limit: largest gate, and largest magnitude of ``up``; values beyond it are clamped.
        sharpness: factor of the gate within the sigmoid.
    """

    limit: float
    sharpness: float


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Mixture-of-experts settings of a model.

    Attributes:
        num_experts: per layer, without shared ones.
        intermediate_size: of an expert.
        layers: per layer, whether it has experts rather than one feed-forward part.
        routing: choice of each token's experts.
        shared: the shared experts; None for none.
        has_bias: whether routers and experts have biases.
        gate: activation of the experts; None for that of dense layers.
    """

    num_experts: int
    intermediate_size: int
    layers: tuple[bool, ...]
    routing: Routing
    shared: SharedExpert | None = None
    has_bias: bool = False
    gate: ClampedGate | None = None

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return self.routing.top_k


def read_moe(config: JsonFields, family: Family, num_layers: int) -> MoeSpec | None:
    """Read the settings; None for a dense model.

    Raises:
        SpecError: a value is missing, or beyond its limit, or does not fit the others.
    """
    match family.experts:
        case None:
            return None
        case "mixtral" | "olmoe":
            moe = _mixtral(config, num_layers, is_olmo=family.experts == "olmoe")
        case "qwen" | "qwen_shared":
            moe = _qwen(config, num_layers, is_shared=family.experts == "qwen_shared")
        case "deepseek_v2" | "deepseek_v3":
            moe = _deepseek(config, num_layers, family.experts == "deepseek_v2")
        case "gpt_oss":
            moe = _gpt_oss(config, num_layers)
        case "llama4":
            moe = _llama4(config, num_layers)
    _check(config, moe, num_layers)
    return moe


def _mixtral(config: JsonFields, num_layers: int, *, is_olmo: bool) -> MoeSpec:
    return MoeSpec(
        _num_experts(config, "num_experts", None if is_olmo else 8),
        config.size("intermediate_size"),
        (True,) * num_layers,
        Routing(
            config.size("num_experts_per_tok"),
            renormalize=not is_olmo or config.flag("norm_topk_prob", False),
        ),
    )


def _qwen(config: JsonFields, num_layers: int, *, is_shared: bool) -> MoeSpec:
    step, dense = config.size("decoder_sparse_step", 1), {*config.indices("mlp_only_layers")}
    shared = None
    if is_shared:
        size = config.size("shared_expert_intermediate_size")
        shared = SharedExpert("shared_expert", size, "shared_expert_gate")
    return MoeSpec(
        _num_experts(config, "num_experts", 60 if is_shared else 128),
        config.size("moe_intermediate_size"),
        tuple(i not in dense and (i + 1) % step == 0 for i in range(num_layers)),
        Routing(
            config.size("num_experts_per_tok"), renormalize=config.flag("norm_topk_prob", False)
        ),
        shared,
    )


def _deepseek(config: JsonFields, num_layers: int, is_second: bool) -> MoeSpec:
    """Read the settings of DeepSeek-V2 or V3, and of those that route as they do."""
    expected = {"moe_layer_freq": 1, "scoring_func": "softmax" if is_second else "sigmoid"}
    if not is_second:
        expected["topk_method"] = "noaux_tc"
    for key, value in expected.items():
        if config.raw(key) not in (None, value):
            raise SpecError(f"{config.where}: {key} must be {value}, not {config.raw(key)!r:.60}")
    num_shared = config.optional_size("n_shared_experts")
    size = config.size("moe_intermediate_size")
    top_k, scale = config.size("num_experts_per_tok"), config.number("routed_scaling_factor")
    if not is_second:
        routing = Routing(
            top_k,
            "sigmoid",
            config.flag("norm_topk_prob", True),
            scale,
            has_correction=True,
            groups=config.size("n_group"),
            top_groups=config.size("topk_group"),
            ranked_by=2,
            in_float32=True,
        )
    else:
        method = config.text("topk_method", "greedy")
        if method not in ("greedy", "group_limited_greedy"):
            raise SpecError(
                f"{config.where}: topk_method must be greedy or group_limited_greedy, not"
                f" {method!r}"
            )
        is_limited = method == "group_limited_greedy"
        routing = Routing(
            top_k,
            # Not by norm_topk_prob, which transformers does not read for this family.
            renormalize=False,
            scale=scale,
            groups=config.size("n_group") if is_limited else 1,
            top_groups=config.size("topk_group") if is_limited else 1,
            in_float32=True,
        )
    return MoeSpec(
        _num_experts(config, "n_routed_experts"),
        size,
        _layers_by_type(config, num_layers),
        routing,
        None if num_shared is None else SharedExpert("shared_experts", num_shared * size),
    )


def _layers_by_type(config: JsonFields, num_layers: int) -> tuple[bool, ...]:
    """Read which layers have experts: those that are listed, or all behind the first few.

    Raises:
        SpecError: the list does not fit the layers.
    """
    listed = config.texts("mlp_layer_types")
    if listed is None:
        first = config.count("first_k_dense_replace", 0)
        return tuple(layer >= first for layer in range(num_layers))
    if len(listed) != num_layers or not {*listed} <= {"dense", "sparse"}:
        raise SpecError(
            f"{config.where}: mlp_layer_types must name dense or sparse for each of {num_layers}"
            f" layers, not {', '.join(sorted({*listed}))} for {len(listed)}"
        )
    return tuple(kind == "sparse" for kind in listed)


def _gpt_oss(config: JsonFields, num_layers: int) -> MoeSpec:
    return MoeSpec(
        _num_experts(config, "num_experts", 128),
        config.size("intermediate_size"),
        (True,) * num_layers,
        Routing(config.size("num_experts_per_tok", 4)),
        has_bias=True,
        gate=ClampedGate(config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)),
    )


def _llama4(config: JsonFields, num_layers: int) -> MoeSpec:
    size, step = config.size("intermediate_size"), config.size("interleave_moe_layer_step", 1)
    if config.raw("moe_layers") is None:
        layers = tuple((layer + 1) % step == 0 for layer in range(num_layers))
    else:
        listed = {*config.indices("moe_layers")}
        layers = tuple(layer in listed for layer in range(num_layers))
    top_k = config.size("num_experts_per_tok", 1)
    return MoeSpec(
        _num_experts(config, "num_local_experts", 16),
        size,
        layers,
        Routing(top_k, "sigmoid", renormalize=False, weighs_inputs=True),
        SharedExpert("shared_expert", size),
    )


def _num_experts(config: JsonFields, key: str, default: int | None = None) -> int:
    # transformers writes num_local_experts for all families since its version 5.
    if config.raw("num_local_experts") is not None:
        return config.size("num_local_experts")
    return config.size(key, default)


def _check(config: JsonFields, moe: MoeSpec, num_layers: int) -> None:
    """Refuse numbers that do not fit each other.

    Raises:
        SpecError: some do not.
    """
    num_experts, routing, where = moe.num_experts, moe.routing, config.where
    # Before any name is generated: a config.json must not take all memory.
    if num_experts * num_layers > MOST_EXPERTS:
        raise SpecError(
            f"{where}: {num_experts} experts in each of {num_layers} layers are more than"
            f" {MOST_EXPERTS}"
        )
    if routing.top_k > num_experts:
        raise SpecError(
            f"{where}: num_experts_per_tok is {routing.top_k}, more than {num_experts} experts"
        )
    groups, top_groups = routing.groups, routing.top_groups
    if num_experts % groups:
        raise SpecError(
            f"{where}: n_group is {groups}, which does not divide {num_experts} experts"
        )
    if top_groups > groups:
        raise SpecError(f"{where}: topk_group is {top_groups}, more than n_group, {groups}")
    of_group = num_experts // groups
    if of_group < routing.ranked_by:
        raise SpecError(
            f"{where}: n_group is {groups}, so that a group has {of_group} of {num_experts}"
            f" experts; groups are ranked by their best {routing.ranked_by}"
        )
    if routing.top_k > top_groups * of_group:
        raise SpecError(
            f"{where}: num_experts_per_tok is {routing.top_k}, more than the"
            f" {top_groups * of_group} experts of topk_group, {top_groups}, groups"
        )
