"""Engines on a GPU beside the CPU's with the same weights, and where their tokens may differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gatewayd_engine.model.assembly.decoder import assemble
from gatewayd_engine.model.assembly.linears import Weights
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.model.loading.layout import layout
from gatewayd_engine.model.loading.loader import _Random
from gatewayd_engine.model.parts import LayerParts
from gatewayd_engine.model.spec import ModelSpec
from tests.engine.core.conftest import Answer, Harness, build

DEVICE = "cuda"
MOST_TOP = 20


def on_gpu(model: Path | None = None, **fields: Any) -> Harness:
    """An engine on the GPU; see ``build``."""
    return build(model, **{"device": DEVICE, "kv_bytes": 4 << 30, **fields})


def on_cpu(model: Path | None = None, **fields: Any) -> Harness:
    """The reference: float32, on all cores."""
    return build(model, **{"dtype": "float32", "threads": None, **fields})


def write_llama(folder: Path, **sizes: int) -> Path:
    """A checkpoint without weights: a Llama of these sizes."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 2048,
        "rope_theta": 500_000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "eos_token_id": 2,
        **sizes,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@dataclass(frozen=True, slots=True)
class _Moved:
    """Weights that are made in one place and used in another, rounded to bfloat16 in both."""

    source: Weights
    device: str
    dtype: torch.dtype

    @property
    def num_parameters(self) -> int:
        return self.source.num_parameters

    def __contains__(self, name: object) -> bool:
        return name in self.source

    def tensor(self, name: str) -> torch.Tensor:
        return self.source.tensor(name).to(self.device, self.dtype)

    def float32(self, name: str) -> torch.Tensor:
        return self.tensor(name).float()

    def matrix(self, name: str) -> torch.Tensor:
        return self.tensor(f"{name}.weight")


def dummy_from_cpu(
    spec: ModelSpec,
    dtype: torch.dtype,
    device: str,
    seed: int,
    progress: Callable[[float], None],
    parts: LayerParts,
) -> Decoder:
    """``dummy`` whose numbers do not depend on device and type."""
    made = _Random(layout(spec), torch.bfloat16, "cpu", seed, progress)
    weights: Any = _Moved(made, device, dtype)
    return assemble(spec, weights, parts)


def greedy(engine: Harness, prompts: Sequence[Sequence[int]], new: int) -> list[Answer]:
    """What the reference answers, with its likeliest alternatives."""
    asked = {"max_tokens": new, "ignore_eos": True, "logprobs": MOST_TOP}
    ids = [engine.submit(prompt, **asked)[0] for prompt in prompts]
    done = engine.run()
    return [done[i] for i in ids]


def follow(
    engine: Harness,
    prompts: Sequence[Sequence[int]],
    reference: Sequence[Answer],
    tolerance: float,
) -> list[float]:
    """Compare greedy tokens with the reference's, all of them.

    Where they differ, the reference's logits of the two must be nearly equal; from there on the
    engine is given the reference's tokens.

    Returns:
        The gap of logits at each difference.
    """
    wanted = [answer.tokens for answer in reference]
    at, gaps = [0] * len(prompts), []
    while pending := [i for i, tokens in enumerate(wanted) if at[i] < len(tokens)]:
        ids = {
            i: engine.submit(
                [*prompts[i], *wanted[i][: at[i]]],
                max_tokens=len(wanted[i]) - at[i],
                ignore_eos=True,
            )[0]
            for i in pending
        }
        done = engine.run()
        for i in pending:
            answer = done[ids[i]]
            assert answer.finished is not None
            assert answer.finished.error is None
            got, rest = answer.tokens, wanted[i][at[i] :]
            assert len(got) == len(rest)
            same = next((k for k in range(len(rest)) if got[k] != rest[k]), len(rest))
            if same < len(rest):
                report = reference[i].logprobs[at[i] + same]
                others = dict(zip(report.top_tokens, report.top_logprobs, strict=True))
                gap = report.logprob - others.get(got[same], -torch.inf)
                assert gap < tolerance, f"prompt {i}, token {at[i] + same}: a gap of {gap:.3f}"
                gaps.append(gap)
            at[i] += same + 1
    return gaps
