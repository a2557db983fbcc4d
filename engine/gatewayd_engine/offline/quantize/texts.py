"""Default calibration texts. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from gatewayd_engine.offline.quality.texts import QualityText, read

BUNDLED = Path(__file__).with_name("texts.jsonl")


def bundled() -> list[QualityText]:
    """Read the bundled calibration texts, alternately chats and source code.

    They do not overlap with the texts that quality is measured on.
    """
    return read(BUNDLED)
