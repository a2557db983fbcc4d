"""The texts that are calibrated on where none are given. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from gatewayd_engine.offline.quality.texts import QualityText, read

BUNDLED = Path(__file__).with_name("texts.jsonl")


def bundled() -> list[QualityText]:
    """Chats and source text of the corpus of the embedded models, by turns; see ``make_texts``.

    Nothing of it is in the texts that quality is measured on.
    """
    return read(BUNDLED)
