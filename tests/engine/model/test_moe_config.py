"""config.json of models with experts: layers that have them, numbers that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gatewayd_engine.model.config.families import Family
from gatewayd_engine.model.config.moe import MoeSpec, SharedExpert, read_moe
from gatewayd_engine.model.config.windows import read_windows
from gatewayd_engine.model.json_fields import JsonFields, SpecError

QWEN2 = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
DEEPSEEK = {
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
LLAMA4 = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48}


def read(experts: Any, values: dict[str, Any]) -> MoeSpec:
    moe = read_moe(JsonFields(values, "config.json"), Family(experts=experts), 6)
    assert moe is not None
    return moe


def where(layers: Sequence[bool]) -> str:
    return "".join("x" if has else "-" for has in layers)


@pytest.mark.parametrize(
    ("experts", "values", "layers"),
    [
        ("qwen_shared", QWEN2, "xxxxxx"),
        ("qwen_shared", {**QWEN2, "decoder_sparse_step": 2, "mlp_only_layers": [3]}, "-x---x"),
        ("deepseek_v3", DEEPSEEK, "-xxxxx"),
        ("deepseek_v3", {**DEEPSEEK, "first_k_dense_replace": 0}, "xxxxxx"),
        ("deepseek_v2", {**DEEPSEEK, "first_k_dense_replace": 9}, "------"),
        (
            "deepseek_v3",
            {**DEEPSEEK, "mlp_layer_types": ["dense", *["sparse"] * 4, "dense"]},
            "-xxxx-",
        ),
        ("llama4", LLAMA4, "xxxxxx"),
        ("llama4", {**LLAMA4, "interleave_moe_layer_step": 2}, "-x-x-x"),
        ("llama4", {**LLAMA4, "interleave_moe_layer_step": 2, "moe_layers": [0, 4]}, "x---x-"),
        ("llama4", {**LLAMA4, "moe_layers": []}, "------"),
    ],
)
def test_layers_with_experts_are_those_of_the_family(
    experts: str, values: dict[str, Any], layers: str
) -> None:
    assert where(read(experts, values).layers) == layers


def test_shared_experts_are_one_of_their_sizes_together() -> None:
    assert read("deepseek_v3", DEEPSEEK).shared == SharedExpert("shared_experts", 96)
    assert read("deepseek_v3", {**DEEPSEEK, "n_shared_experts": None}).shared is None
    assert read("qwen_shared", QWEN2).shared == SharedExpert(
        "shared_expert", 80, "shared_expert_gate"
    )


def test_groups_of_deepseek_v2_are_ranked_by_their_best_and_only_if_asked_for() -> None:
    greedy = read("deepseek_v2", {**DEEPSEEK, "n_group": None, "topk_group": None}).routing
    assert (greedy.groups, greedy.top_groups, greedy.is_softmax) == (1, 1, False)
    limited = read("deepseek_v2", {**DEEPSEEK, "topk_method": "group_limited_greedy"}).routing
    assert (limited.groups, limited.top_groups, limited.ranked_by) == (4, 2, 1)


@pytest.mark.parametrize(
    ("experts", "changes", "message"),
    [
        (
            "deepseek_v3",
            {"mlp_layer_types": ["sparse", "thin"]},
            "for each of 6 layers, not sparse, thin for 2",
        ),
        ("deepseek_v3", {"n_group": 5}, "n_group is 5, which does not divide 12 experts"),
        ("deepseek_v3", {"topk_group": 5}, "topk_group is 5, more than n_group, 4"),
        (
            "deepseek_v3",
            {"n_group": 12},
            "n_group is 12, so that a group has 1 of 12 experts; groups are ranked by their best 2",
        ),
        (
            "deepseek_v3",
            {"num_experts_per_tok": 7},
            "num_experts_per_tok is 7, more than the 6 experts of topk_group, 2, groups",
        ),
        ("deepseek_v3", {"num_experts_per_tok": 13}, "13, more than 12 experts"),
        ("deepseek_v3", {"n_shared_experts": 0}, "n_shared_experts must be between 1 and"),
        ("deepseek_v3", {"first_k_dense_replace": -1}, "must be an integer from 0 to"),
        ("deepseek_v3", {"n_group": None}, "lacks n_group"),
        ("deepseek_v3", {"n_routed_experts": 1 << 20}, "1048576 experts in each of 6 layers"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method must be greedy or .*noaux_tc"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method must be noaux_tc, not 'greedy'"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func must be sigmoid"),
        ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq must be 1, not 2"),
        ("qwen_shared", {}, "lacks shared_expert_intermediate_size"),
    ],
)
def test_numbers_that_do_not_fit_are_named(
    experts: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=f"config.json:? .*{message}|config.json {message}"):
        read(experts, {**DEEPSEEK, **changes})


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (0, 0, 0, 0)),
        ({"sliding_window": 0}, (0, 0, 0, 0)),
        ({"use_sliding_window": True}, (8, 0, 8, 0)),
        ({"use_sliding_window": True, "max_window_layers": 2}, (8, 0, 0, 0)),
    ],
)
def test_windows_of_qwen2_moe_alternate_before_a_layer(
    changes: dict[str, Any], windows: tuple[int, ...]
) -> None:
    config = JsonFields({"sliding_window": 8, **changes}, "config.json")
    assert read_windows(config, Family(windows="listed_before"), (True,) * 4, 64) == windows
