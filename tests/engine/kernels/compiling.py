"""GPU compilation of every kernel at a model's sizes, without running it.

    python -m tests.engine.kernels.compiling CAPABILITY

A script: what was imported to be interpreted cannot be compiled. Needs no GPU, because the compiler
is told what it compiles for: 90 is sm_90a, 100 is sm_100a. Prints the name of each kernel that went
through to machine code.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from dataclasses import replace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from gatewayd_engine.kernels.experts.base import ClampedAct
from gatewayd_engine.kernels.triton_kernels import TritonKernels
from tests.engine.kernels import checks, expert_checks, verifying
from tests.engine.kernels.blocked import block_mm
from tests.engine.kernels.decoding import Case, Chunks, Lines

CAPABILITY = int(sys.argv[1])

CHOSEN = torch.tensor([[1, 0], [0, 1]])
"""Experts of two tokens."""


def compile_only(
    kernel: Any,
    *args: object,
    grid: object,
    warmup: bool,
    num_warps: int,
    num_stages: int = 3,
    launch_pdl: bool = False,
    **constants: object,
) -> None:
    """What ``JITFunction.run`` does before it launches; it tells ones, and multiples of 16."""
    given = inspect.signature(kernel.fn).bind(*args, **constants).arguments
    types = {name: mangle_type(value) for name, value in given.items() if name not in constants}
    fixed = {
        name: value
        for name, value in given.items()
        if name in constants or (type(value) is int and value == 1)
    }
    signature = {name: "constexpr" if name in fixed else types[name] for name in given}
    places = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    aligned = {
        (kernel.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, value in given.items()
        if name not in fixed and _is_aligned(value)
    }
    source = ASTSource(kernel, signature, places, aligned)
    target = GPUTarget("cuda", CAPABILITY, 32)
    options = {"num_warps": num_warps, "num_stages": num_stages, "launch_pdl": launch_pdl}
    made = triton.compile(source, target=target, options=options).asm
    if "cubin" not in made:
        return
    print(kernel.__name__)
    if launch_pdl:
        names = [name for name, kind in signature.items() if kind != "constexpr"]
        memory = [name if signature[name].startswith("*") else "" for name in names]
        print("early", kernel.__name__, *before_wait(made["ptx"], memory))
    elif "griddepcontrol" in made["ptx"]:
        print("early", kernel.__name__, "is not launched early")


def before_wait(ptx: str, names: list[str]) -> list[str]:
    """Which parameters of a kernel lead to memory that it touches before it waits.

    ``names`` has those of the parameters that are pointers, and nothing for others.
    Registers are assigned once, so what each is made of follows from the lines before.
    """
    made: dict[str, set[str]] = {}
    found: set[str] = set()
    for line in ptx.splitlines():
        if "griddepcontrol.wait" in line:
            return sorted(found - {""})
        if re.search(r"\b(ld|st|atom|red|cp)\.(?!param)[\w.]*", line) and "shared" not in line:
            (address,) = re.findall(r"\[\s*(%rd\d+)", line)
            found |= made.get(address, set())
        if parameter := re.search(r"(%\w+), \[\w+_param_(\d+)\]", line):
            register, number = parameter.groups()
            at = int(number)
            made[register] = {names[at]} if at < len(names) else set()
            continue
        registers = re.findall(r"%\w+", line)
        if len(registers) > 1:
            of = [made.get(register, set()) for register in registers[1:]]
            made[registers[0]] = set().union(*of)
    return ["everything: it never waits"]


def _is_aligned(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % 16 == 0
    return type(value) is int and value % 16 == 0


def main() -> None:
    """Compile what Llama 3.1 8B would launch, and layers of a single head."""
    JITFunction.run = compile_only
    kernels, cpu, vocab = TritonKernels(), torch.device("cpu"), 128_256

    def launch(check: Any, *sizes: object, **named: object) -> None:
        # Nothing ran, so the answers are nonsense.
        with contextlib.suppress(AssertionError):
            check(kernels, cpu, *sizes, **named)

    half, full = torch.bfloat16, torch.float32
    # Early or not, a kernel differs by its first instructions only: each way once is enough.
    kernels.launches_early = True
    launch(checks.add_rms_norm, half, 2, 4096, True)
    launch(checks.add_rms_norm, half, 2, 4096, False)
    launch(checks.norm_heads, half, 2, 40, 128)
    launch(checks.norm_heads, half, 2, 1, 128)
    launch(checks.gated, half, 2, 14336, "silu")
    launch(checks.gated, half, 2, 14336, "gelu")
    launch(checks.gated, half, 2, 14336, "gelu_tanh")
    for codes in (torch.int8, torch.float8_e4m3fn):
        launch(checks.add_rms_norm_quant, half, 2, 4096, True, codes)
        launch(checks.gated_quant, half, 2, 14336, "silu", codes)
        launch(checks.quantize, half, 2, 4096, codes)
        kernels.launches_early = False
    for n in (2, 33, 1100):
        launch(block_mm, half, n, 2048, 512)
    launch(block_mm, half, 2, 100, 512, 32, True)
    launch(checks.add_rms_norm_quant, half, 2, 4096, True, torch.float8_e4m3fn, 128)
    launch(checks.gated_quant, half, 2, 14336, "silu", torch.float8_e4m3fn, 128)
    launch(checks.quantize, half, 2, 4096, torch.float8_e4m3fn, 128)
    launch(checks.scaled, half, 2, 4096, True)
    # GPTQ without and with ``desc_act``, AWQ, and Q6_K, whose groups are small, at a few lines.
    for kind, groups in (("symmetric", 4), ("any order", 4), ("offsets", 4), ("bytes", 32)):
        launch(checks.grouped_mm, half, 1, 128, 512, groups, kind)
    launch(checks.grouped_mm, half, 32, 128, 512, 1, "e4m3", True)
    launch(checks.expand, half, 128, 512, 4, "any order", 0, 128)
    launch(checks.expand, half, 128, 512, 4, "e4m3", 0, 128)
    # Few tokens, and many; Qwen3-30B's router chooses 8 of 128.
    launch(expert_checks.route, 64, 128, 8, half)
    forms = [("bfloat16", 1, 16), ("e4m3 rows", 1, 16), ("symmetric", 2, 16)]
    forms += [("int8 rows", 1, 64), ("blocks", 1, 128)]
    for kind, groups, lines in forms:
        of = {"groups": groups, "lines": lines, "dtype": half}
        launch(expert_checks.experts, CHOSEN, kind, 2, 256, 256, **of)
    for kind, groups in (("bfloat16", 1), ("symmetric", 2)):
        act, of = ClampedAct(7.0, 1.702), {"groups": groups, "dtype": half, "has_bias": True}
        launch(expert_checks.experts, CHOSEN, kind, 2, 256, 256, act, **of)
    kernels.launches_early = True
    launch(checks.scale_by_sinks, half, 2, 8, 64)
    launch(checks.rope_append, half, 2, 32, 8, 128, 128)
    launch(checks.norm_mm, half, 2, 512, 256, None, False)
    launch(checks.norm_mm, half, 2, 512, 256, "silu", False)
    launch(checks.gather, [1, 30], [4, 0])
    launch(checks.sample, half, 1, vocab)
    kernels.launches_early = False
    launch(checks.rope_append, half, 2, 1, 1, 128, 64, 1)
    launch(checks.rope_append, half, 2, 128, 1, 576, 64, first=512)
    for element in (torch.float8_e4m3fn, torch.float8_e5m2):
        launch(checks.rope_append, half, 2, 32, 8, 128, 128, 16, element)
    for case in _decoding(half):
        kernels.launches_early = not kernels.launches_early
        Lines(case, cpu).attended(kernels)
    kernels.launches_early = False
    for case in _decoding(half):
        if not case.value_dim or case.shared is not None:
            continue
        chunks = replace(case, width=64, counts=(64, 5), parents=None, shared=None, splits=1)
        Chunks(chunks).attended(kernels, cpu)
    launch(checks.sample, full, 1, vocab)
    launch(verifying.slots, [1, 4], [0, 3], 4)
    for most in (2, 9, 64):
        launch(verifying.accept, 0, most)
    for element in (half, torch.float8_e4m3fn):
        launch(verifying.compact_path, element, 1024)
    for dtype in (half, full):
        launch(checks.logprobs, dtype, 1, vocab, 5)
        launch(checks.mask, dtype, 1, vocab)
        launch(checks.penalise, dtype, 1, vocab)


def _decoding(half: torch.dtype) -> list[Case]:
    """Decode steps, of one query and of drafts in a row and in a tree."""
    llama = Case((250, 3), num_heads=32, kv_heads=8, dim=128, page_size=16, splits=32, dtype=half)
    deepseek = replace(llama, num_heads=128, kv_heads=1, dim=576, value_dim=512)
    return [
        llama,
        replace(llama, splits=1, element=torch.float8_e4m3fn, has_sinks=True, window=128),
        replace(llama, num_heads=16, dim=256, softcap=50.0, width=5, counts=(5, 2), splits=3),
        replace(llama, splits=2, shared=(3, 32)),
        deepseek,
        replace(deepseek, splits=1, num_heads=16, width=3, element=torch.float8_e4m3fn),
        replace(llama, width=64, parents=(-1, *range(63)), splits=3, window=16),
        replace(deepseek, splits=2, shared=(3, 32)),
    ]


if __name__ == "__main__":
    main()
