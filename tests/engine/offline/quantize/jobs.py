"""Small quantization jobs, and their reported progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gatewayd_engine.offline.quantize.job import Event, LayerWritten, QuantizeFailed, QuantizeJob
from gatewayd_engine.offline.quantize.run import quantize
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from tests.engine.core.small_model import small

HOST = PluginHost(Catalog.installed())
SETTINGS: dict[str, dict[str, Any]] = {"awq": {"group_size": 64}, "gptq": {"act_order": True}}


def job(out: Path, to: str, samples: list[list[int]], **changes: Any) -> QuantizeJob:
    made = QuantizeJob(
        str(small()), str(out), StrategyChoice(to, SETTINGS.get(to, {})), samples, threads=1
    )
    return msgspec.structs.replace(made, **changes)


def told(one: QuantizeJob) -> list[Event]:
    events: list[Event] = []
    quantize(one, HOST, events.append)
    return events


def reason(one: QuantizeJob) -> str:
    (failed,) = [event for event in told(one) if isinstance(event, QuantizeFailed)]
    assert "\n" not in failed.reason
    return failed.reason


def stopped(event: Event) -> None:
    """Ends a run behind a layer."""
    if isinstance(event, LayerWritten):
        raise RuntimeError
