"""Calls of compiled products on a team: their arguments in memory, as ``matmul`` reads them."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from gatewayd_engine.kernels.cpu.panel_layout import PanelFormat, code_layout, rounded_bytes
from gatewayd_engine.kernels.cpu.panels import Panels
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.kernels.llvm.library import Library

STORE, ADD = 0, 1
GATES = {"silu": 2, "gelu_tanh": 3, "gelu": 4}
"""Epilogues: sums are stored, added to the output, or gate times up is stored."""


class Job(IntEnum):
    """Index of an argument of the job ``product_FORMAT``: those of ``matmul_FORMAT``.

    ``SUMS_STRIDE``: numbers of scratch of a thread. ``ROUNDED``: scratch for rounded activations,
    where the format has them.
    """

    X = 0
    LDX = 1
    ROWS = 2
    WEIGHTS = 3
    INPUTS = 4
    GROUPS = 5
    OUTPUTS = 6
    BIAS = 7
    OUT = 8
    LDO = 9
    EPILOGUE = 10
    SUMS = 11
    SUMS_STRIDE = 12
    ROUNDED = 13


class MatmulJob:
    """Calls of the product of one format.

    Args:
        team: threads that compute it.
        code: of ``matmul_code``.
        form: the format.

    Attributes:
        matmul: address of the function that computes some panels, for fused steps.
        rounding: address of the function that rounds a row of activations; 0 where they stay
            floats.
        layout: of codes that are multiplied with rounded activations; None for others.
    """

    __slots__ = ("_arguments", "_product", "_team", "layout", "matmul", "rounding")

    def __init__(self, team: ThreadTeam, code: Library, form: PanelFormat) -> None:
        self.matmul = code.address(f"matmul_{form.name}")
        self.rounding = code.address(f"round_{form.name}") if form.span else 0
        self.layout = code_layout(form.codes, team.processor.dots) if form.span else None
        self._product = code.address(f"product_{form.name}")
        self._team = team
        self._arguments = np.zeros(len(Job), np.int64)
        self._arguments[Job.SUMS] = team.sums.ctypes.data
        self._arguments[Job.SUMS_STRIDE] = team.sums.shape[1]

    def rounded_bytes(self, inputs: int) -> int:
        """Return the bytes of a row of rounded activations; 0 where they stay floats."""
        return 0 if self.layout is None else rounded_bytes(inputs, self.layout)

    def run(
        self,
        panels: Panels,
        bias: torch.Tensor | None,
        x: torch.Tensor,
        out: torch.Tensor,
        epilogue: int,
    ) -> None:
        """Multiply float32 rows ``[n, inputs]``, whose numbers are adjacent, into ``out``.

        Raises:
            ValueError: a shape, a dtype or a stride is another one.
        """
        outputs = panels.outputs if epilogue in (STORE, ADD) else panels.outputs // 2
        if x.dim() != 2 or x.shape[1] != panels.inputs or out.shape != (x.shape[0], outputs):
            raise ValueError(
                f"inputs are {list(x.shape)} and outputs {list(out.shape)}, not [n,"
                f" {panels.inputs}] and [n, {outputs}]"
            )
        if x.dtype != torch.float32 or out.dtype != torch.float32:
            raise ValueError(f"inputs are {x.dtype} and outputs {out.dtype}, not float32")
        if x.stride(-1) != 1 or out.stride(-1) != 1:
            raise ValueError("numbers of a row are not adjacent")
        given = self._arguments
        rounded = None  # owned until the job has ended
        if self.layout is not None:
            size = rounded_bytes(panels.inputs, self.layout)
            rounded = torch.empty(x.shape[0], size, dtype=torch.uint8)
        with self._team.lock:
            given[Job.ROUNDED] = 0 if rounded is None else rounded.data_ptr()
            given[: Job.SUMS] = (
                *(x.data_ptr(), x.stride(0), x.shape[0], panels.data.data_ptr()),
                *(panels.inputs, panels.groups, panels.outputs),
                0 if bias is None else bias.data_ptr(),
                *(out.data_ptr(), out.stride(0), epilogue),
            )
            self._team.run(self._product, given, phases=2)
