"""FlashInfer's matmul modules and a clock, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gatewayd_engine.tuning.matmul_candidates import multiply

Tensor = torch.Tensor


class Modules:
    """FlashInfer's two modules: they compute on the host and note what was launched.

    Attributes:
        wrong: algorithms whose answers lack a column.
        broken: algorithms that raise.
        bad_lines: numbers of lines at which every algorithm raises.
        launched: by name, with the number of lines.
        refused: the numbers of lines at which algorithms raised.
    """

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.wrong: set[int] = set()
        self.broken: set[int] = set()
        self.bad_lines: set[int] = set()
        self.launched: list[tuple[str, int]] = []
        self.refused: list[int] = []

    def mm_bf16_cublaslt_get_algos(
        self, x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, work: Tensor, handle: int,
        algorithms: Tensor,
    ) -> int:  # fmt: skip
        assert algorithms.device.type == "cpu"
        assert algorithms.numel() >= 64 * self.count
        algorithms.view(-1, 64)[: self.count, 0] = torch.arange(self.count) + 1
        return self.count

    def mm_bf16_cublaslt_run_with_algo(
        self, x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, work: Tensor, handle: int,
        algorithms: Tensor, index: int,
    ) -> None:  # fmt: skip
        assert algorithms.view(-1, 64)[index, 0] == index + 1
        if index in self.broken or len(x) in self.bad_lines:
            self.refused.append(len(x))
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        self._multiply(f"cublaslt {index}", x, w, bias, out)
        if index in self.wrong:
            out[:, -1] = torch.nan

    def tinygemm2_op(self, x: Tensor, w: Tensor, bias: Tensor, out: Tensor, pdl: bool) -> None:
        assert not pdl
        self._multiply("tinygemm2", x, w, bias, out)

    def tinygemm2_nobias_op(self, x: Tensor, w: Tensor, out: Tensor, pdl: bool) -> None:
        assert not pdl
        self._multiply("tinygemm2", x, w, None, out)

    def _multiply(self, name: str, x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor) -> None:
        assert x.is_contiguous()
        assert out.is_contiguous()
        self.launched.append((name, len(x)))
        multiply(x, w, bias, out)


class Recording:
    """A clock that knows before how long each candidate takes.

    Attributes:
        times: microseconds by name.
        lines: the numbers of lines that were measured.
        calls: launches of each measurement.
    """

    def __init__(self, modules: Modules, **times: float) -> None:
        self.times = {"torch": 10.0, **{n.replace("_", " "): t for n, t in times.items()}}
        self.lines: list[int] = []
        self.calls: list[int] = []
        self._modules = modules

    def __call__(self, calls: Sequence[Callable[[], object]]) -> float:
        self._modules.launched.clear()
        for call in calls:
            call()
        self.calls.append(len(calls))
        if not self._modules.launched:
            return self.times["torch"]
        if len(set(self._modules.launched)) > 1:
            return 50.0  # a whole step
        ((name, lines),) = set(self._modules.launched)
        self.lines.append(lines)
        return self.times.get(name, 99.0)
