"""Admission conformance: rejects refusals without a reason and permanent refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gatewayd_hooks.admission import AdmissionRequest, Load, Refusal
from gatewayd_hooks.strategy import Kind
from gatewayd_hooks.testing.admission import AdmissionConformance

Verdict = Callable[..., list[str]]
Catches = Callable[..., bool]


def test_a_sound_one_passes(verdict: Verdict) -> None:
    assert verdict(AdmissionConformance, Kind.ADMISSION, "room") == []


# Each of these breaks one rule of a sound strategy, which is changed in place.


def changes_refusals(**changes: Any) -> Callable[[Any], None]:
    def broken(admission: Any) -> None:
        admit = admission.admit

        def answer(request: AdmissionRequest, load: Load) -> Refusal | None:
            refusal = admit(request, load)
            return None if refusal is None else replace(refusal, **changes)

        admission.admit = answer

    return broken


def shuts_the_door(admission: Any) -> None:
    refused: list[Refusal] = []
    admit = admission.admit

    def answer(request: AdmissionRequest, load: Load) -> Refusal | None:
        refusal = admit(request, load)
        refused.extend([refusal] if refusal else [])
        return refused[0] if refused else None

    admission.admit = answer


@pytest.mark.parametrize(
    "broken",
    [
        changes_refusals(reason="Too late!"),
        changes_refusals(message=""),
        changes_refusals(retry_after=0.0),
        changes_refusals(retry_after=float("inf")),
        changes_refusals(offers=({},)),
        shuts_the_door,
    ],
)
def test_a_broken_one_fails(catches: Catches, broken: Callable[[Any], None]) -> None:
    assert catches(AdmissionConformance, Kind.ADMISSION, "room", broken)
