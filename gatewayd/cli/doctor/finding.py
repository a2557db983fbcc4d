"""What each of the doctor's checks returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: ``text`` says what is, and what to do where it is not well."""

    subject: str
    state: Literal["ok", "warning", "failure"]
    text: str
