"""Products of low-bit weights beside those of dense ones, and experts."""

from __future__ import annotations

from functools import partial

import torch

from gatewayd_engine.kernels.base import Kernels
from gatewayd_engine.kernels.experts.base import ExpertMatrices
from gatewayd_engine.kernels.quantized.block_scales import GROUP
from gatewayd_engine.model.linears.select_gpu import DeviceLinears
from gatewayd_engine.model.weights import dense
from gatewayd_hooks.quantization import GroupedWeight
from tests.bench.gemm import SCHEMES
from tests.gpu.probing.bench import TWIN, Bench
from tests.gpu.probing.trial import Tensors, Trial

_SCHEMES = ("bf16", "int8", "w4a16", "fp8", "fp8 blocks")
_UNCACHED = 256 << 20
"""Bytes of copies of a weight that are read one after the other: more than a cache holds."""
_ROUNDS = 4
_CODES = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn}


def packed(bench: Bench) -> None:
    """Each scheme as the engine multiplies it: inputs are rounded where it asks for that."""
    for name in ("gate_up", "down"):
        rows, columns = bench.sizes.matrices[name]
        numbers = bench.randn(rows, columns, scale=columns**-0.5)
        for lines in bench.sizes.packed:
            x = bench.randn(lines, columns)
            with bench.at(f"low-bit {name}", lines=lines):
                for scheme in _SCHEMES:
                    bench.row(scheme, partial(_product, bench, scheme, numbers, x), is_ours=True)


def _product(bench: Bench, scheme: str, numbers: torch.Tensor, x: torch.Tensor) -> Trial:
    linears = DeviceLinears(bench.kernels[""])
    weight = SCHEMES[scheme](numbers)
    made = [linears.make(weight, None, bench.sizes.dtype)]
    more = 0 if bench.is_small else _UNCACHED // made[0].nbytes
    others = (SCHEMES[scheme](numbers.clone()) for _ in range(more))
    made += [linears.make(other, None, bench.sizes.dtype) for other in others]

    def wanted() -> Tensors:
        """Of inputs that are rounded as by the twin, float32."""
        given = x.float()
        if isinstance(weight, GroupedWeight) and weight.activations in _CODES:
            in_blocks = weight.scales.shape[1] > 1
            codes = _CODES[weight.activations]
            rounded = TWIN.quantize(x, codes, GROUP if in_blocks else 0)
            each = x.shape[1] // rounded.scales.shape[1]
            given = rounded.codes.float() * rounded.scales.repeat_interleave(each, 1)
        return (torch.mm(given, dense(weight).float().t()),)

    calls = [partial(linear, x) for linear in made] * _ROUNDS
    return Trial(calls, lambda: (made[0](x),), wanted, made[0].nbytes)


def experts(bench: Bench) -> None:
    """A mixture of experts, launch by launch; tokens are spread over them at random."""
    of = bench.sizes.mixture
    matrices = [
        _stacked(bench, rows, columns)
        for rows, columns in ((2 * of.inner, of.hidden), (of.hidden, of.inner))
    ]
    for lines in of.lines:
        with bench.at("experts", lines=lines):
            _experts(bench, lines, *matrices)


def _experts(bench: Bench, lines: int, first: ExpertMatrices, second: ExpertMatrices) -> None:
    of = bench.sizes.mixture
    x, scores = bench.randn(lines, of.hidden), bench.randn(lines, of.experts)
    weights, chosen = TWIN.route(scores, of.top_k, renormalize=True)
    visits, visited = TWIN.sort_visits(chosen, of.experts), len(set(chosen.flatten().tolist()))
    given, inner = (bench.randn(visits.num_visits, of.inner) for _ in range(2))
    answers = bench.randn(visits.num_visits, of.hidden)

    def route(kernels: Kernels) -> Tensors:
        shares, tables = kernels.route_visits(scores, of.top_k, renormalize=True)
        return shares, tables.experts  # in its order empty blocks may hold anything

    def gates(kernels: Kernels) -> Tensors:
        kernels.expert_gates(x, first, visits, "silu", inner)
        return (inner.clone(),)

    def back(kernels: Kernels) -> Tensors:
        kernels.expert_answers(given, second, visits, weights, answers)
        return (answers.clone(),)

    def total(kernels: Kernels) -> Tensors:
        return (kernels.sum_visits(answers, of.top_k),)

    # None of them is ever launched early.
    each = visited * bench.sizes.dtype.itemsize
    bench.kernel("route", route, route, ways=("",))
    bench.kernel("gates", gates, gates, each * first.rows * first.columns, ways=("",))
    bench.kernel("answers", back, back, each * second.rows * second.columns, ways=("",))
    bench.kernel("sum", total, total, ways=("",))


def _stacked(bench: Bench, rows: int, columns: int) -> ExpertMatrices:
    """A matrix of each expert."""
    number = bench.sizes.mixture.experts
    all_ = bench.randn(number, rows, columns, scale=columns**-0.5)
    return ExpertMatrices(all_, all_[0], number, rows, columns)
