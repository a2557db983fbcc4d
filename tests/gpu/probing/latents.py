"""Latent attention of decode steps and of prompts, over records of DeepSeek-V3's size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from gatewayd_engine.attention.append import Append
from gatewayd_engine.attention.step_inputs import HostPlan
from gatewayd_engine.attention.triton_decode import DecodeKernels
from gatewayd_engine.kernels.base import Kernels
from tests.gpu.probing.attention import Contexts
from tests.gpu.probing.bench import TWIN, Bench
from tests.gpu.probing.trial import Tensors, Trial

_COMPARED = 8
"""Last queries of a chunk that are compared: the twin compares each with all tokens."""


def latents(bench: Bench) -> None:
    """Decoding over contexts of several lengths, and a chunk at the end of one sequence."""
    for length in bench.contexts:
        for lines in bench.batches:
            with bench.at("latents", lines=lines, context=length):
                contexts = Contexts(bench, lines, length, latents=True)
                bench.both("triton", contexts.by_decode)
        chunk = min(bench.sizes.latents.chunk, length)
        with bench.at("latents, prompt", lines=1, context=length):
            made = Contexts(bench, 1, length, width=chunk, latents=True)
            # It has no early form.
            make = partial(_by_prompt, made, bench.kernels[""])
            bench.row("triton", make, is_ours=True)


def _by_prompt(contexts: Contexts, kernels: Kernels) -> Trial:
    """As a prompt's chunk attends; see ``kernels/attention/prompt.py``."""
    shape, pool, width = contexts.shape, contexts.pool, contexts.width
    inputs, device = contexts.inputs, pool.data.device
    indptr = torch.tensor([0, width], dtype=torch.int32)
    host = HostPlan(0, indptr, contexts.indptr, contexts.last, longest=contexts.length)
    inputs = replace(inputs, host=host, query_indptr=indptr.to(device))
    append = Append(shape, pool, kernels, ())
    attend = DecodeKernels(shape, pool, append, kernels, 1, contexts.length).prompts(inputs, 0)
    out = contexts.empty(width)

    def answer() -> Tensors:
        attend(0, contexts.queries, out)
        return (out[-_COMPARED:].clone(),)

    def wanted() -> Tensors:
        few = min(_COMPARED, width)
        made = contexts.empty(few)
        last = torch.tensor([0, few], dtype=torch.int32, device=device)
        TWIN.prompt_attention(
            *(contexts.queries[-few:], pool.data[:, 0], last, inputs.page_indptr),
            *(inputs.pages, inputs.last_page_len, made),
            scale=shape.scale,
            softcap=None,
            window=0,
            sinks=None,
            first=0,
            most_queries=few,
        )
        return (made,)

    calls = [partial(attend, layer, contexts.queries, out) for layer in range(shape.num_layers)]
    return Trial(calls, answer, wanted, contexts.read)
