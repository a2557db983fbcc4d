"""What a GPU machine has: versions, FlashInfer's compiled modules that load, its own speed."""

from __future__ import annotations

import importlib
import platform
import sys
import time
from importlib import metadata
from typing import Any

_PACKAGES = (
    *(
        "torch",
        "triton",
        "flashinfer-python",
        "numpy",
        "transformers",
        "tokenizers",
        "typer",
        "rich",
    ),
    *("pluggy", "starlette", "pydantic", "msgspec", "typing_extensions", "nvidia-ml-py"),
)
_OURS = (
    "gatewayd.cli",
    "gatewayd.cli.bench.cli",
    "gatewayd.store.schema",
    "gatewayd.http.form",
    "gatewayd.daemon.compose",
    "gatewayd_engine.kernels.triton_kernels",
)
_ROUNDS = 10


def versions() -> str:
    """Of Python and of what the project imports."""
    found = [f"Python {platform.python_version()} {sys.executable}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} MISSING")
    return "; ".join(found)


def compiled_modules() -> list[str]:
    """What becomes of the modules of attention that the 8B shape and the embedded model need."""
    import torch
    from flashinfer.jit.attention import gen_batch_prefill_module
    from flashinfer.jit.cascade import gen_cascade_module
    from flashinfer.prefill import _gen_batch_prefill_primary_module

    bf16, int32 = torch.bfloat16, torch.int32

    def fa2(keys: torch.dtype, dim: int) -> Any:
        rest = (dim, dim, 0, False, False, False)
        return _gen_batch_prefill_primary_module("fa2", bf16, keys, bf16, int32, *rest)

    wanted = [fa2(keys, dim) for keys in (bf16, torch.float8_e4m3fn) for dim in (128, 64)]
    wanted.append(
        gen_batch_prefill_module("fa3", bf16, bf16, bf16, int32, 128, 128, 0, False, False, False)
    )
    wanted.append(gen_cascade_module())
    return [
        ("loads: " if one.try_load() is not None else "DOES NOT LOAD, will be compiled: ")
        + one.name[:110]
        for one in wanted
    ]


def speed() -> str:
    """What this device's memory and its products do: a floor to compare figures with."""
    import torch

    def milliseconds(call: Any) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        for _ in range(3):
            call()
        begin.record()
        for _ in range(_ROUNDS):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / _ROUNDS

    size = 8192
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    products = 2 * size**3 / milliseconds(lambda: x @ x) / 1e9
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * len(source) / milliseconds(lambda: target.copy_(source)) / 1e9
    return f"products {products:.0f} TFLOP/s; memory {copied:.2f} TB/s, read and written"


def main() -> int:
    """Print all of it; 1 if something of ours cannot be imported."""
    print(versions())
    failed = 0
    for name in _OURS:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"CANNOT BE IMPORTED: {name}: {error}")
            failed = 1
    import torch

    has_gpu = torch.cuda.is_available()
    print(f"CUDA {torch.version.cuda}: {torch.cuda.get_device_name() if has_gpu else 'no GPU'}")
    try:
        began = time.perf_counter()
        flashinfer = importlib.import_module("flashinfer")
        took = time.perf_counter() - began
        print(f"FlashInfer {flashinfer.__version__}, imported in {took:.1f} s")
        print("\n".join(compiled_modules()))
    except ImportError as error:
        print(f"no FlashInfer: {error}")
        failed = failed or int(has_gpu)
    if has_gpu:
        print(speed())
    return failed


if __name__ == "__main__":
    sys.exit(main())
