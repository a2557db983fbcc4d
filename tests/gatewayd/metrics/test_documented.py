"""Metric documentation: lists exactly the names on ``/metrics``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.http.routes.routed import fallback
from tests.gatewayd.store_fixtures import opened

UPSTREAMS = {"one": UpstreamEntry(url="http://127.0.0.1:9/v1", models={"far": "m"})}
OPERATIONS = Path(__file__).parents[3] / "docs/operations/observe.md"


class Entry(NamedTuple):
    """A name on ``/metrics``."""

    type: str
    labels: frozenset[str]


def documented() -> dict[str, Entry]:
    """The table below the heading "Metrics"."""
    section = OPERATIONS.read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    entries = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            name, kind, labels, meaning = (cell.strip() for cell in line.split("|")[1:-1])
            assert meaning
            assert name.strip("`") not in entries
            entries[name.strip("`")] = Entry(
                kind.removesuffix(" *"), frozenset(label.strip("`") for label in labels.split())
            )
    return entries


def exported(page: str) -> dict[str, Entry]:
    """What a scraper finds; every family has a sample."""
    entries = {}
    for family in text_string_to_metric_families(page):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert family.documentation
        labels = [frozenset(sample.labels) - {"le"} for sample in family.samples]
        assert len(set(labels)) == 1, name
        entries[name] = Entry(family.type, labels[0])
    return entries


async def test_every_name_is_documented_and_every_documented_name_is_there(
    text: TextModel, tmp_path: Path
) -> None:
    with opened(tmp_path) as durable:
        fleet, routes = FakeFleet(says([100, 101])), [fallback("nano")]
        async with running(
            text, fleet, durable=durable, routes=routes, upstreams=UPSTREAMS
        ) as gateway:
            await gateway.http.post("/v1/chat/completions", json={**CHAT, "model": "smart"})
            await gateway.until_finished()
            answer = await gateway.http.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
    assert exported(answer.text) == documented()
