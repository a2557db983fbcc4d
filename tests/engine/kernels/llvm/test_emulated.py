"""Products for arm64, run by an emulator: those of torch, and on this machine's processor.

It needs ``qemu-user-static`` and ``gcc-aarch64-linux-gnu`` of Debian, and is skipped without them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gatewayd_engine.kernels.cpu.integer_panels import pack_integers
from gatewayd_engine.kernels.cpu.jobs import STORE, Job
from gatewayd_engine.kernels.cpu.matmul import add_matmul, add_product
from gatewayd_engine.kernels.cpu.panel_layout import code_layout, rounded_bytes
from gatewayd_engine.kernels.cpu.panels import Panels, pack, pack_codes
from gatewayd_engine.kernels.cpu.team import sums_size
from gatewayd_engine.kernels.cpu.team_layout import MOST_ARGUMENTS
from gatewayd_engine.kernels.llvm.builder import new_module
from gatewayd_engine.kernels.llvm.compiler import to_object
from gatewayd_engine.kernels.llvm.processor import NEON, Processor
from gatewayd_engine.model.weights import dense
from tests.engine.kernels.cpu.test_integer_products import FORMS, assert_sums, numbers, quantized

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
DRIVER = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
void JOB(int64_t *arguments, int64_t thread, int64_t threads);
int main(int count, char **paths) {
    FILE *in = fopen(paths[1], "rb");
    int64_t head[3]; /* numbers of 64 bits, relocations, result */
    if (fread(head, 8, 3, in) != 3) return 1;
    int64_t *moved = malloc(8 * head[1]);
    int64_t *memory = aligned_alloc(64, (8 * head[0] + 63) / 64 * 64);
    if (fread(moved, 8, head[1], in) != head[1]) return 1;
    if (fread(memory, 8, head[0], in) != head[0]) return 1;
    for (int64_t i = 0; i < head[1]; i++) memory[moved[i]] += (int64_t)memory;
    JOB(memory, 0, 1);
    FILE *out = fopen(paths[2], "wb");
    fwrite(memory + head[2], 8, head[0] - head[2], out);
    return fclose(out);
}
"""
needs_emulator = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"{EMULATOR} and {COMPILER} are not installed",
)


def product(folder: Path, panels: Panels, x: torch.Tensor, processor: Processor) -> torch.Tensor:
    """Compile a product, and run it in the emulator on one thread."""
    form = panels.form
    module = new_module("emulated")
    add_product(module, processor, form, add_matmul(module, processor, form))
    (folder / "kernel.o").write_bytes(to_object(module, processor))
    (folder / "driver.c").write_text(DRIVER)
    program = folder / "program"
    subprocess.run(
        [
            *(COMPILER, "-static", f"-DJOB=product_{form.name}", "-o", program),
            *(folder / "driver.c", folder / "kernel.o", "-lm"),
        ],
        check=True,
    )
    row = rounded_bytes(panels.inputs, code_layout(form.codes, processor.dots)) if form.span else 0
    out = torch.zeros(len(x), panels.outputs)
    write(
        folder / "in",
        {
            Job.X: x,
            Job.LDX: panels.inputs,
            Job.ROWS: len(x),
            Job.WEIGHTS: panels.data,
            Job.INPUTS: panels.inputs,
            Job.GROUPS: panels.groups,
            Job.OUTPUTS: panels.outputs,
            Job.BIAS: 0,
            Job.LDO: panels.outputs,
            Job.EPILOGUE: STORE,
            Job.SUMS: torch.zeros(sums_size(processor)),
            Job.SUMS_STRIDE: 0,
            Job.ROUNDED: torch.zeros(len(x) * row + 8, dtype=torch.uint8),
            Job.OUT: out,
        },
    )
    subprocess.run([EMULATOR, program, folder / "in", folder / "out"], check=True)
    made = np.fromfile(folder / "out", np.float32, out.numel())
    return torch.from_numpy(made).view(out.shape)


def write(path: Path, arguments: Mapping[Job, torch.Tensor | int]) -> None:
    """Write a job's arguments and counters, then what they point to; the output comes last."""
    numbers_of = np.zeros(MOST_ARGUMENTS + 16, np.int64)
    parts: list[NDArray[np.int64]] = [numbers_of]
    moved, size = [], len(numbers_of)
    for at, value in arguments.items():
        if isinstance(value, int):
            numbers_of[at] = value
            continue
        data = value.contiguous().view(torch.uint8).flatten().numpy().tobytes()
        words = np.frombuffer(data + bytes(-len(data) % 8), np.int64)
        moved.append(int(at))
        numbers_of[at] = 8 * size
        parts.append(words)
        size += len(words)
    head = np.array([size, len(moved), size - len(parts[-1])], np.int64)
    path.write_bytes(b"".join(part.tobytes() for part in (head, np.array(moved), *parts)))


@needs_emulator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_of_floats_are_those_of_torch(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = numbers(37, 96, seed=1).to(dtype).float()
    x = numbers(13, 96)
    made = product(tmp_path, pack(weight, NEON.lanes), x, NEON)
    torch.testing.assert_close(made, (x.double() @ weight.double().t()).float())


@needs_emulator
@pytest.mark.parametrize("form", FORMS)
def test_products_of_codes_are_those_of_torch(tmp_path: Path, form: str) -> None:
    weight = quantized(form, 37)
    x = numbers(13, 512)
    panels = pack_codes(weight, NEON.lanes)
    assert panels is not None
    made = product(tmp_path, panels, x, NEON)
    expected = (x.double() @ dense(weight).double().t()).float()
    torch.testing.assert_close(made, expected, atol=0.05, rtol=1e-5)


@needs_emulator
@pytest.mark.parametrize("form", FORMS)
def test_products_of_rounded_activations_are_those_of_torch(tmp_path: Path, form: str) -> None:
    weight = quantized(form, 37)
    panels = pack_integers(weight, NEON)
    assert panels is not None
    x = numbers(13, 512)
    assert_sums(product(tmp_path, panels, x, NEON), x, weight)
