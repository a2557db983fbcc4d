"""Compiled kernels of this process: products by format, and steps by model shape."""

from __future__ import annotations

from functools import cache

from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat
from gatewayd_engine.kernels.cpu.step_layout import StepShape
from gatewayd_engine.kernels.llvm.library import Library, load_or_compile
from gatewayd_engine.kernels.llvm.processor import Processor


@cache
def matmul_code(processor: Processor, form: PanelFormat) -> Library:
    """Return ``matmul_FORMAT`` and ``product_FORMAT``; see ``matmul``."""

    def compile_code() -> bytes:
        # Imported only where something is compiled: a start from the cache needs none of it.
        from gatewayd_engine.kernels.cpu.matmul import add_matmul, add_product
        from gatewayd_engine.kernels.llvm.builder import new_module
        from gatewayd_engine.kernels.llvm.compiler import to_object

        module = new_module(f"matmul_{form.name}")
        add_product(module, processor, form, add_matmul(module, processor, form))
        return to_object(module, processor)

    return load_or_compile(processor, ("matmul", form), compile_code)


@cache
def step_code(processor: Processor, shape: StepShape) -> Library:
    """Return ``step``; see ``step``."""

    def compile_code() -> bytes:
        from gatewayd_engine.kernels.cpu.step import add_step
        from gatewayd_engine.kernels.llvm.builder import new_module
        from gatewayd_engine.kernels.llvm.compiler import to_object

        module = new_module("step")
        add_step(module, processor, shape)
        return to_object(module, processor)

    return load_or_compile(processor, ("step", shape), compile_code)
