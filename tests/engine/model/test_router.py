"""Routers of experts, compared with those of transformers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from gatewayd_engine.model.config.moe import Routing
from gatewayd_engine.model.layers import FeedForward, Gated, Linear
from gatewayd_engine.model.moe import MixtureOfExperts, WithSharedExpert
from gatewayd_engine.model.router import Router, SharedGate

HIDDEN, EXPERTS, TOP_K = 32, 12, 3
GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
V3 = Routing(
    TOP_K,
    "sigmoid",
    scale=2.5,
    has_correction=True,
    groups=4,
    top_groups=2,
    ranked_by=2,
    in_float32=True,
)
V2 = Routing(TOP_K, renormalize=False, scale=2.5, groups=4, top_groups=2, in_float32=True)
V2_CONFIG = {**GROUPS, "topk_method": "group_limited_greedy"}

CASES: dict[str, tuple[str, str, dict[str, Any], Routing]] = {
    "softmax": (
        "qwen2_moe",
        "Qwen2MoeTopKRouter",
        {"norm_topk_prob": False},
        Routing(TOP_K, renormalize=False),
    ),
    "renormalized": (
        "qwen2_moe",
        "Qwen2MoeTopKRouter",
        {"norm_topk_prob": True},
        Routing(TOP_K),
    ),
    "softmax of the chosen": ("gpt_oss", "GptOssTopKRouter", {}, Routing(TOP_K)),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3TopkRouter", GROUPS, V3),
    "glm4_moe": ("glm4_moe", "Glm4MoeTopkRouter", GROUPS, V3),
    "without renormalization": (
        "glm4_moe",
        "Glm4MoeTopkRouter",
        {**GROUPS, "norm_topk_prob": False, "n_group": 1, "topk_group": 1},
        Routing(
            TOP_K, "sigmoid", renormalize=False, scale=2.5, has_correction=True, in_float32=True
        ),
    ),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2TopkRouter", V2_CONFIG, V2),
    "greedy": (
        "deepseek_v2",
        "DeepseekV2TopkRouter",
        {"routed_scaling_factor": 1.5, "topk_method": "greedy"},
        Routing(TOP_K, renormalize=False, scale=1.5, in_float32=True),
    ),
}


def theirs(module: str, name: str, options: dict[str, Any]) -> Any:
    """A router of transformers with random weights, in float32."""
    import transformers

    folder = f"transformers.models.{module}.modeling_{module}"
    made = importlib.import_module(folder)
    kind = name.removesuffix("TopKRouter").removesuffix("TopkRouter")
    experts = "num_experts" if kind == "Qwen2Moe" else "num_local_experts"
    sizes = {"hidden_size": HIDDEN, experts: EXPERTS, "num_experts_per_tok": TOP_K}
    config = getattr(transformers, f"{kind}Config")(**sizes, **options)
    # It reads this name, which the configuration has under the older one alone.
    config.num_experts = EXPERTS
    router = getattr(made, name)(config)
    with torch.no_grad():
        for tensor in (*router.parameters(), *router.buffers()):
            tensor.normal_(0, 0.5)
    return router


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_choice_and_weights_are_those_of_transformers(case: str, dtype: torch.dtype) -> None:
    module, name, options, routing = CASES[case]
    other = theirs(module, name, options)
    other.weight.data = other.weight.to(dtype)
    if (bias := getattr(other, "bias", None)) is not None:
        other.bias.data = bias.to(dtype)
        bias = other.bias.data
    weight = other.weight.float() if routing.in_float32 else other.weight
    correction = other.e_score_correction_bias if routing.has_correction else None
    router = Router(Linear(weight, bias), routing, correction)
    x = torch.randn(200, HIDDEN).to(dtype)
    _, weights, chosen = other(x)
    ours, ids = router(x)
    assert ours.dtype == torch.float32
    if dtype == torch.bfloat16 and not routing.in_float32:
        # Logits of eight bits are often equal: then either expert may come first.
        logits = router.logits(x).float().sort(-1, descending=True).values
        apart = (logits[:, TOP_K - 1] > logits[:, TOP_K]).nonzero().flatten()
        assert len(apart) > 150
        weights, chosen, ours, ids = weights[apart], chosen[apart], ours[apart], ids[apart]
    # In which order, differs.
    rank, other_rank = ids.argsort(-1), chosen.argsort(-1)
    assert torch.equal(ids.gather(-1, rank), chosen.gather(-1, other_rank))
    near = 1e-6 if weights.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(
        ours.gather(-1, rank), weights.float().gather(-1, other_rank), rtol=near, atol=near
    )


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_equal_scores_are_ranked_alike_in_any_batch(case: str) -> None:
    routing = CASES[case][3]
    # Few different logits, so that scores, and groups, are often equal.
    weight = torch.randint(-1, 2, (EXPERTS, HIDDEN)).float()
    correction = torch.randint(0, 2, (EXPERTS,)).float() if routing.has_correction else None
    router = Router(Linear(weight), routing, correction)
    x = torch.randint(-1, 2, (97, HIDDEN)).float() * 0.1
    weights, chosen = router(x)
    for begin, end in ((0, 1), (3, 20), (50, 97), (96, 97)):
        some, ids = router(x[begin:end])
        assert torch.equal(ids, chosen[begin:end])
        assert torch.equal(some, weights[begin:end])
    assert all(len(set(row)) == TOP_K for row in chosen.tolist())


@torch.inference_mode()
def test_sigmoids_have_the_same_bits_in_any_batch() -> None:
    # Seven outputs, so that rows begin at any place of a vector register.
    linears = Linear(torch.eye(7)), Linear(torch.ones(1, 7))
    for linear in linears:
        linear.is_steady = True
    router = Router(linears[0], Routing(7, "sigmoid", renormalize=False))
    gate = SharedGate(linears[1])
    x = torch.randn(1000, 7) * 4
    (weights, _), opened = router(x), gate(x)
    for row in range(0, 1000, 17):
        assert torch.equal(router(x[row : row + 1])[0][0], weights[row])
        assert torch.equal(gate(x[row : row + 1])[0], opened[row])


@torch.inference_mode()
def test_sigmoids_that_are_all_one_are_ranked_by_their_logits() -> None:
    router = Router(Linear(torch.tensor([[30.0], [50.0], [40.0]])), Routing(2, "sigmoid"))
    weights, chosen = router(torch.ones(1, 1))
    assert chosen.tolist() == [[1, 2]]
    assert weights.tolist() == [[0.5, 0.5]]


@torch.inference_mode()
def test_experts_whose_inputs_are_weighed_are_those_of_llama4() -> None:
    from transformers import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextMoe

    sizes = {"hidden_size": HIDDEN, "intermediate_size": 48, "num_local_experts": EXPERTS}
    other = Llama4TextMoe(Llama4TextConfig(**sizes, num_experts_per_tok=TOP_K))
    for parameter in other.parameters():
        parameter.data.normal_(0, 0.3)
    router = Router(
        Linear(other.router.weight),
        Routing(TOP_K, "sigmoid", renormalize=False, weighs_inputs=True),
    )
    experts = [
        FeedForward(Linear(gate_up.t()), Linear(down.t()), Gated("silu"))
        for gate_up, down in zip(other.experts.gate_up_proj, other.experts.down_proj, strict=True)
    ]
    one = other.shared_expert
    joined = torch.cat((one.gate_proj.weight, one.up_proj.weight))
    shared = FeedForward(Linear(joined), Linear(one.down_proj.weight), Gated("silu"))
    ours = WithSharedExpert(MixtureOfExperts(router, experts), shared, None)
    x = torch.randn(50, HIDDEN)
    wanted, _ = other(x)
    torch.testing.assert_close(ours(x), wanted, rtol=1e-4, atol=1e-4)
    onto = torch.ones_like(x)
    rest = ours.add_to(onto, x)
    assert rest is not None
    torch.testing.assert_close(onto + rest, wanted + 1, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_weights_of_scores_that_are_all_zero_are_zero() -> None:
    router = Router(Linear(torch.full((4, 2), -1e4)), Routing(2, "sigmoid"))
    weights, chosen = router(torch.ones(1, 2))
    assert weights.tolist() == [[0, 0]]
    assert len(set(chosen[0].tolist())) == 2
