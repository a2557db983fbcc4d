"""Linear layer on panels of float weights: compiled products, batch-invariant by construction."""

from __future__ import annotations

import torch

from gatewayd_engine.kernels.cpu.code import matmul_code
from gatewayd_engine.kernels.cpu.jobs import ADD, GATES, STORE, MatmulJob
from gatewayd_engine.kernels.cpu.panels import pack, pair_halves, smallest_exact
from gatewayd_engine.kernels.cpu.team import ThreadTeam


class PanelLinear:
    """``x @ weight.T + bias`` in float32, from weights in the smallest type that is exact.

    Checkpoints are mostly of 16 bits: their numbers are widened in registers, and a product reads
    half the bytes. A row has the same bits in any batch and on any number of threads.

    Args:
        team: threads that compute the product.
        weight: float32, shape ``[out, in]``.
        bias: float, shape ``[out]``.

    Attributes:
        inputs: size of a row of the input.
        outputs: rows of the weight.
        epilogue: of ``jobs``; a gate halves the size of the output.
        form: how the weights are stored.
        panels: the weights.
        bias: padded to whole panels; None for none.
    """

    __slots__ = ("_job", "bias", "epilogue", "form", "inputs", "outputs", "panels", "team")
    rounds_inputs = False

    def __init__(
        self, team: ThreadTeam, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        lanes = team.processor.lanes
        self.team = team
        self.outputs, self.inputs = weight.shape
        weight = weight.float()
        self.form = smallest_exact(weight)
        self.panels = pack(weight, self.form, lanes)
        self.bias = None
        if bias is not None:
            self.bias = torch.zeros(len(self.panels) * 2 * lanes)
            self.bias[: self.outputs] = bias
        self.epilogue = STORE
        self._job = MatmulJob(team, matmul_code(team.processor, self.form.name), self.form.name)

    @property
    def nbytes(self) -> int:
        """See ``LinearOp``."""
        return self.panels.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def is_gated(self) -> bool:
        """Whether the product applies a gated activation; see ``fuse_gate``."""
        return self.epilogue not in (STORE, ADD)

    @property
    def function(self) -> int:
        """Address of the compiled product, for fused steps."""
        return self._job.matmul

    def fuse_gate(self, name: str) -> bool:
        """Let the product of a gate-up projection apply the gated activation, if it can.

        Args:
            name: of the activation, as in ``ModelSpec``.

        Returns:
            Whether it can; then outputs are ``[n, out / 2]``.
        """
        lanes = self.team.processor.lanes
        if name not in GATES or self.outputs % (2 * lanes):
            return False
        self.panels = pair_halves(self.panels, self.form, lanes)
        if self.bias is not None:
            self.bias = self.bias.view(2, -1, lanes).transpose(0, 1).reshape(-1)
        self.epilogue = GATES[name]
        return True

    def __call__(self, x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """See ``LinearOp``."""
        if out is None:
            width = self.outputs // 2 if self.is_gated else self.outputs
            out = x.new_empty(x.shape[0], width)
        self._job.run(self, x, out, self.epilogue)
        return out

    def add_to(self, onto: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """See ``LinearOp``."""
        self._job.run(self, x, onto, ADD)
        return None
