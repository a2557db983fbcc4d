"""Alternatives to torch's dense matmul.

Both are modules of FlashInfer (0.7.2). cuBLASLt proposes several algorithms for a shape and torch
uses the first one; which is fastest has to be measured. ``tinygemm2``, from TensorRT-LLM, is for
few rows. Their C++ entry points check little, so their requirements are checked here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import torch

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor], object]
"""Writes ``x @ weight.T + bias`` for ``[m, k]``, ``[n, k]`` and ``[n]`` or None to ``[m, n]``."""
DEFAULT = "torch"
WORKSPACE_BYTES = 32 << 20
"""Workspace recommended by NVIDIA for cuBLAS on Hopper; matmuls of all shapes share it, because
they run one after another on one stream."""
_ALGORITHMS = 16
"""Number of cuBLASLt algorithms, which it returns in the order of its own estimate."""
_ALGORITHM_BYTES = 64
_TINY_ROWS = 64
"""Maximum rows of tinygemm2, which rereads the weight for every 8 rows."""
_ALIGNED = 16
"""Bytes, for TMA copies and vector loads; required of row sizes as well, to align every row."""
_HOPPER = 9
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Candidates(Protocol):
    """Source of implementations."""

    def of(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> dict[str, Launch]:
        """Return implementations of the matmul of these operands, by name; see ``Launch``."""


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Torch's matmul; a ``Launch``."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


class LtModule(Protocol):
    """``mm_bf16_cublaslt.cu``; handles are addresses, algorithms are bytes on the host."""

    def mm_bf16_cublaslt_get_algos(
        self,
        mat1: torch.Tensor,
        mat2: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        workspace_buffer: torch.Tensor,
        cublas_handle: int,
        algo_buffer: torch.Tensor,
    ) -> int:
        """Write algorithms of 64 bytes each; return how many."""

    def mm_bf16_cublaslt_run_with_algo(
        self,
        mat1: torch.Tensor,
        mat2: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        workspace_buffer: torch.Tensor,
        cublas_handle: int,
        algo_buffer: torch.Tensor,
        algo_idx: int,
    ) -> None:
        """Multiply with one of the algorithms."""


class TinyModule(Protocol):
    """``tinygemm2.cu``."""

    def tinygemm2_op(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        output: torch.Tensor,
        use_pdl: bool,
    ) -> None:
        """Multiply and add a bias."""

    def tinygemm2_nobias_op(
        self, input: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, use_pdl: bool
    ) -> None:
        """Multiply."""


class CublasLt:
    """The algorithms proposed by cuBLASLt.

    Args:
        module: FlashInfer's ``mm_bf16_cublaslt``.
        device: device of the operands.
    """

    def __init__(self, module: LtModule, device: torch.device) -> None:
        self._module = module
        self._work = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def of(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> dict[str, Launch]:
        """See ``Candidates``."""
        if not _are_plain(x, weight, bias, out):
            return {}
        # On the host: launches read the bytes of ``cublasLtMatmulAlgo_t`` there.
        algorithms = torch.zeros(_ALGORITHMS * _ALGORITHM_BYTES, dtype=torch.uint8, device="cpu")
        count = self._module.mm_bf16_cublaslt_get_algos(
            x, weight, bias, out, self._work, _handle(), algorithms
        )
        return {f"cublaslt {i}": partial(self._run, algorithms, i) for i in range(count)}

    def _run(
        self,
        algorithms: torch.Tensor,
        index: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        self._module.mm_bf16_cublaslt_run_with_algo(
            x, weight, bias, out, self._work, _handle(), algorithms, index
        )


class TinyGemm:
    """``tinygemm2``, for few rows on Hopper and later.

    Launched without programmatic dependent launch: its documentation warns that it may hang after
    kernels that are launched otherwise.

    Args:
        module: FlashInfer's ``tinygemm2``.
    """

    def __init__(self, module: TinyModule) -> None:
        self._module = module

    def of(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> dict[str, Launch]:
        """See ``Candidates``."""
        (rows, columns), outputs = x.shape, len(weight)
        is_fit = rows <= _TINY_ROWS and columns % 64 == 0 and outputs % 16 == 0
        if not is_fit or not _are_plain(x, weight, bias, out):
            return {}
        return {"tinygemm2": self._run}

    def _run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        if bias is None:
            self._module.tinygemm2_nobias_op(x, weight, out, False)
        else:
            self._module.tinygemm2_op(x, weight, bias, out, False)


def installed(device: torch.device) -> list[Candidates]:
    """Return the candidates whose modules are installed, or can be compiled now."""
    made: list[Candidates] = []
    if (lt := _loaded("mm_bf16_cublaslt", _cublaslt)) is not None:
        made.append(CublasLt(lt, device))
    # Before the module is loaded, which may compile it.
    is_hopper = torch.cuda.get_device_capability(device)[0] >= _HOPPER
    if is_hopper and (tiny := _loaded("tinygemm2", _tinygemm2)) is not None:
        made.append(TinyGemm(tiny))
    return made


def _handle() -> int:
    """Return torch's handle of this thread; a cuBLAS handle is valid for cuBLASLt."""
    return int(torch.cuda.current_blas_handle())  # type: ignore[no-untyped-call]


def _cublaslt() -> LtModule:
    from flashinfer.jit.gemm.core import gen_mm_bf16_cublaslt_module

    module: LtModule = gen_mm_bf16_cublaslt_module().build_and_load()
    return module


def _tinygemm2() -> TinyModule:
    from flashinfer.jit.tinygemm2 import gen_tinygemm2_module

    module: TinyModule = gen_tinygemm2_module().build_and_load()
    return module


def _loaded(name: str, load: Callable[[], T]) -> T | None:
    """Load a module; None where it is not available."""
    try:
        return load()
    except Exception as error:  # noqa: BLE001 - no FlashInfer, no compiler, another version: torch's
        # Compilers' errors have hundreds of lines.
        first = str(error).partition("\n")[0]
        _log.info("%s is not a candidate: %s: %s", name, type(error).__name__, first)
        return None


def _are_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether all tensors are bfloat16, contiguous and aligned."""
    return all(
        tensor is None
        or (
            tensor.dtype == torch.bfloat16
            and tensor.is_contiguous()
            and tensor.data_ptr() % _ALIGNED == 0
            and tensor.shape[-1] * tensor.itemsize % _ALIGNED == 0
        )
        for tensor in tensors
    )
