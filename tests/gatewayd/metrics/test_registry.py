"""Metric registry: names as a scraper reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest

from tests.gatewayd.one_model import model_metrics


def test_the_version_is_an_info_that_is_one() -> None:
    fleet: Any = SimpleNamespace(status=list, num_pending=0)
    registry = model_metrics(fleet, version="1.2").gateway.registry
    assert 'gatewayd_build_info{version="1.2"} 1.0\n' in generate_latest(registry).decode()
