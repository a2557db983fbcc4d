"""Settings of ``[quantizer.gptq]``, for writing; how a checkpoint is read is in the checkpoint."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class GptqConfig(StrategyConfig):
    """How `gatewayd quantize --to gptq` writes a checkpoint."""

    bits: Literal[4, 8] = setting(4, reload="restart", doc="Bits per weight: 4 or 8.")
    group_size: Literal[16, 32, 64, 128, 256, 512, 1024, -1] = setting(
        128,
        reload="restart",
        doc=(
            "Number of columns that share a scale and a zero point: 16 to 1024, a power of "
            "two, or -1 for a whole row."
        ),
    )
    symmetric: bool = setting(
        False,
        reload="restart",
        doc=(
            "Whether ranges are symmetric around zero, as Marlin kernels and vLLM require; less "
            "accurate."
        ),
    )
    act_order: bool = setting(
        False,
        reload="restart",
        doc=(
            "Whether columns with the largest inputs are quantized first; more accurate, but "
            "slower in some kernels."
        ),
    )
    damping: float = setting(
        0.01,
        reload="restart",
        gt=0,
        le=1,
        doc=(
            "Fraction of the mean that is added to the diagonal of the Hessian, above 0 and up to "
            "1."
        ),
    )
