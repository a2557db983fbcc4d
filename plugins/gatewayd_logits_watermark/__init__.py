"""Logits processor that watermarks answers, detectable with their tenant's key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_logits_watermark.config import WatermarkConfig

if TYPE_CHECKING:
    from gatewayd_hooks.detection import Detector
    from gatewayd_hooks.logits import LogitsProcessor


def _build(config: WatermarkConfig) -> LogitsProcessor:
    from gatewayd_logits_watermark.strategy import Watermark

    return Watermark(config)


def _detector(config: WatermarkConfig) -> Detector:
    from gatewayd_logits_watermark.detector import MarkDetector

    return MarkDetector(config)


@hookimpl
def gatewayd_logits_processors() -> Sequence[StrategyInfo[LogitsProcessor]]:
    """Provide ``watermark``."""
    return [
        StrategyInfo(
            name="watermark",
            config_type=WatermarkConfig,
            build=_build,
            summary="Watermarks answers with a key per tenant; its detector finds them.",
            requires_spec=">=1.2,<2",
            detector=_detector,
        )
    ]
