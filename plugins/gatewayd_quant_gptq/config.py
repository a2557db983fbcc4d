"""Settings of ``[quantizer.gptq]``: of what is written; a checkpoint says itself how it is read."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class GptqConfig(StrategyConfig):
    """How `gatewayd quantize --to gptq` writes a checkpoint."""

    bits: Literal[4, 8] = setting(4, reload="restart", doc="Bits of a weight.")
    group_size: Literal[16, 32, 64, 128, 256, 512, 1024, -1] = setting(
        128, reload="restart", doc="Columns that share a scale and a zero; -1 for all of a row."
    )
    symmetric: bool = setting(
        False,
        reload="restart",
        doc="The same reach to both sides of zero, as Marlin and vLLM want it; less exact.",
    )
    act_order: bool = setting(
        False,
        reload="restart",
        doc="Round the columns with the largest inputs first; some kernels are slower then.",
    )
    damping: float = setting(
        0.01,
        reload="restart",
        gt=0,
        le=1,
        doc="The part of the mean that is added to the diagonal of the Hessian.",
    )
