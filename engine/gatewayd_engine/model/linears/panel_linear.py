"""Linear layer on panels: compiled products in float32, batch-invariant by construction."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.cpu.code import matmul_code
from gatewayd_engine.kernels.cpu.integer_panels import pack_integers
from gatewayd_engine.kernels.cpu.jobs import ADD, GATES, STORE, MatmulJob
from gatewayd_engine.kernels.cpu.panels import Panels, pack, pack_codes, paired_rows
from gatewayd_engine.kernels.cpu.team import ThreadTeam
from gatewayd_engine.model.linears.product_check import is_right
from gatewayd_engine.model.weights import select_rows
from gatewayd_hooks.quantization import GroupedWeight


class PanelLinear:
    """``x @ weight.T + bias`` in float32, from weights as they are stored.

    Checkpoints are mostly of 16 bits or fewer: numbers and codes are widened in registers, and a
    product reads their bytes alone. Activations are not rounded. A row has the same bits in any
    batch and on any number of threads.

    Args:
        team: threads that compute the product.
        panels: the weight.
        bias: float, shape ``[out]``.
        gate: gated activation that the product of a gate-up projection applies, as in
            ``ModelSpec``; None for none. Its rows, and the bias, are in the order of ``paired``.

    Attributes:
        team, panels: as given.
        bias: padded to whole panels; None for none.
        epilogue: of ``jobs``.
    """

    __slots__ = ("_job", "bias", "epilogue", "panels", "team")

    def __init__(
        self,
        team: ThreadTeam,
        panels: Panels,
        bias: torch.Tensor | None = None,
        gate: str | None = None,
    ) -> None:
        self.team, self.panels = team, panels
        self.bias = None
        if bias is not None:
            self.bias = torch.zeros(len(panels.data) * 2 * team.processor.lanes)
            self.bias[: panels.outputs] = bias
        self.epilogue = STORE if gate is None else GATES[gate]
        self._job = MatmulJob(team, matmul_code(team.processor, panels.form), panels.form)

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self.panels.data.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def is_gated(self) -> bool:
        """Whether the product applies a gated activation; outputs are then ``[n, out / 2]``."""
        return self.epilogue != STORE

    @property
    def function(self) -> int:
        """Address of the compiled product, for fused steps."""
        return self._job.matmul

    @property
    def rounding(self) -> int:
        """Address of the function that rounds a row of inputs; 0 where they stay floats."""
        return self._job.rounding

    @property
    def rounded_size(self) -> int:
        """Size of a rounded row, in numbers of 32 bits."""
        return self._job.rounded_bytes(self.panels.inputs) // 4

    @property
    def rounds_inputs(self) -> bool:
        """See ``LinearOp``."""
        return self._job.rounding != 0

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        if out is None:
            outputs = self.panels.outputs
            out = x.new_empty(x.shape[0], outputs // 2 if self.is_gated else outputs)
        self._job.run(self.panels, self.bias, x, out, self.epilogue)
        return out

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        self._job.run(self.panels, self.bias, x, onto, ADD)
        return None


def panel_linear(
    team: ThreadTeam,
    weight: torch.Tensor | GroupedWeight,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    *,
    rounds_activations: bool = False,
) -> PanelLinear | None:
    """Pack a weight into a linear layer; None if panels cannot hold its format.

    Args:
        team: threads that compute the product.
        weight: shape ``[out, in]``.
        bias: float, shape ``[out]``.
        activation: gated activation behind a gate-up projection, which the product applies if it
            can; None for none.
        rounds_activations: whether low-bit weights are multiplied with activations that are
            rounded to 8-bit integers, if panels can hold their format so.
    """
    lanes = team.processor.lanes
    rows = len(weight.codes if isinstance(weight, GroupedWeight) else weight)
    gate = activation if activation in GATES and rows % (2 * lanes) == 0 else None
    if gate is not None:
        order = paired_rows(rows, lanes)
        selected = select_rows(weight, order)
        if not isinstance(selected, torch.Tensor | GroupedWeight):
            raise TypeError(f"{type(selected).__name__} is no weight of panels")
        weight, bias = selected, None if bias is None else bias[order]
    panels: Panels | None = None
    if isinstance(weight, GroupedWeight):
        if rounds_activations:
            panels = pack_integers(weight, team.processor)
            if panels and not is_right(panels.form, PanelLinear(team, panels), weight):
                panels = None
        if panels is None:
            panels = pack_codes(weight, lanes)
    else:
        panels = pack(weight.float(), lanes)
    return None if panels is None else PanelLinear(team, panels, bias, gate)
