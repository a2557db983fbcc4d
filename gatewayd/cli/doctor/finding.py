"""Result type of the checks of ``gatewayd doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check; ``text`` describes the state, and the remedy unless it is ok."""

    subject: str
    state: Literal["ok", "warning", "failure"]
    text: str
