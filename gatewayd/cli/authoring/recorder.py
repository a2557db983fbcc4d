"""Pytest plugin that records the outcome of each test as a JSON line."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from gatewayd.cli.authoring.kit import KIT, RECORD

if TYPE_CHECKING:
    from _pytest.reports import CollectReport, TestReport


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, TestReport, TestReport]:
    """Record a test that was called, skipped, or failed in setup or teardown."""
    report = yield
    if report.when == "call" or report.failed or (report.skipped and report.when == "setup"):
        bases = getattr(getattr(item, "cls", None), "__mro__", ())
        kit = [base.__name__ for base in bases if base.__module__.startswith(KIT)]
        own = [base.__dict__ for base in bases if not base.__module__.startswith(KIT)]
        # Without the parameters, as methods are named.
        name = getattr(item, "originalname", item.name)
        # A test of the kit that the author overrides is the author's own.
        is_kit = bool(kit) and not any(name in members for members in own)
        _record(
            kit=kit[0] if kit else "",
            is_kit=is_kit,
            test=item.name,
            where=type(item).__name__ if not bases else bases[0].__name__,
            outcome=report.outcome,
            seconds=round(report.duration, 3),
            text="" if report.passed else _message(report),
        )
    return report


def pytest_collectreport(report: CollectReport) -> None:
    """Record a file that cannot be imported."""
    if report.failed:
        text = _message(report)
        _record(kit="", is_kit=False, test=report.nodeid, where="", outcome="failed", text=text)


def _message(report: TestReport | CollectReport) -> str:
    """Return the first line of the reason why a test failed or was skipped."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", "") or report.longrepr)
    return next((line for line in text.splitlines() if line.strip()), "")


def _record(**fields: object) -> None:
    # Opened for each line, so that a crash of pytest loses no outcome.
    with open(os.environ[RECORD], "a", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")
