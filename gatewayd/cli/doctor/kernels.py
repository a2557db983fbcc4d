"""Check of the kernels of engines on a CPU. Imports no torch."""

from __future__ import annotations

from gatewayd.cli.doctor.finding import Finding
from gatewayd.config.device_defaults import sizes
from gatewayd.config.tables import Config
from gatewayd_engine.kernels.llvm.processor import Processor, host


def kernels(config: Config) -> Finding:
    """Name the kernels that an engine on the CPU computes with."""
    device = sizes(config.engine).device
    if device != "cpu":
        return Finding("kernels", "ok", f"those of the GPU, by [engine] device = {device!r}")
    try:
        return judge(config, host())
    except ImportError as error:
        text = f"torch's, which are slower: {error}; pip install llvmlite"
        return Finding("kernels", "warning", text)


def judge(config: Config, processor: Processor | None) -> Finding:
    """Name the kernels that an engine computes with on a processor; None for an unsupported one."""
    if config.engine.cpu_kernels == "torch":
        return Finding("kernels", "ok", "torch's, by [engine] cpu_kernels")
    if config.model.dtype == "bfloat16":
        return Finding("kernels", "ok", "torch's: compiled ones need [model] dtype float32")
    if processor is None:
        text = "torch's, which are slower: this processor has neither AVX2 with FMA nor NEON"
        return Finding("kernels", "warning", text)
    text, size = f"{processor.kind}, compiled for {processor.cpu}", config.engine.page_size_tokens
    if size % processor.lanes:
        text += (
            f"; steps run layer by layer, which is slower: [engine] page_size_tokens = {size} is"
            f" no multiple of {processor.lanes}"
        )
        return Finding("kernels", "warning", text)
    return Finding("kernels", "ok", text)
