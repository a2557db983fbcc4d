"""Shipped alerts and dashboard: valid, and name only existing metrics."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.gatewayd.metrics.test_documented import documented

ETC = Path(__file__).parents[3] / "etc"
ALERTS = ETC / "prometheus/alerts.yml"
DASHBOARD = ETC / "grafana/gatewayd.json"
_NAME = re.compile(r"[a-z_]+:[a-z0-9_:]+|\bgatewayd_[a-z0-9_]+")
_SELECTOR = re.compile(r"([a-z_:0-9]+)\{([^}]*)\}")
_GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    """Of all groups."""
    return [
        rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
    ]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel.get("targets", ()))
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def known() -> dict[str, frozenset[str]]:
    """Names on ``/metrics``, which another test compares with the page, and their labels."""
    found = {}
    for name, entry in documented().items():
        found[name] = entry.labels
        if entry.type == "histogram":
            found |= {
                f"{name}_{part}": entry.labels | {"le"} for part in ("bucket", "sum", "count")
            }
    return found | {
        rule["record"]: frozenset(("model_name", "class", "slo"))
        for rule in rules()
        if "record" in rule
    }


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_name_and_label_is_on_metrics(expression: str) -> None:
    names, every = _NAME.findall(expression), known()
    assert names
    assert set(names) <= set(every)
    labels = set().union(*(every[name] for name in names)) | {"instance"}
    for name, selector in _SELECTOR.findall(expression):
        asked = set(re.findall(r"([a-z_]+)(?:=~|!~|!=|=)", selector))
        assert asked <= every[name] | {"instance"}
    for group in _GROUPING.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels
    for opened, closed in ("()", "{}", "[]"):
        assert expression.count(opened) == expression.count(closed)


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    names = [alert["alert"] for alert in alerts]
    assert len(set(names)) == len(names) > 5
    for alert in alerts:
        assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert set(alert["annotations"]) == {"summary", "description"}


def test_panels_are_of_the_chosen_models() -> None:
    every, chosen = known(), set()
    for panel in panels():
        for target in panel.get("targets", ()):
            for name, selector in _SELECTOR.findall(target["expr"]):
                has_model = "model_name" in every[name]
                assert ('model_name=~"$model_name"' in selector) is has_model, target["expr"]
                chosen.add(has_model)
    assert chosen == {True, False}


def test_alerts_do_not_add_up_models() -> None:
    every = known()
    for rule in rules():
        groups = _GROUPING.findall(rule["expr"])
        if groups and all("model_name" in every[name] for name in _NAME.findall(rule["expr"])):
            # A daemon without any engine is a case of its own.
            is_of_all = rule.get("alert") == "GatewaydNoEngineReady"
            assert any("model_name" in group for group in groups) is not is_of_all, rule


def test_panels_do_not_lie_upon_one_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells = set(itertools.product(columns, rows))
        assert columns[-1] < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_takes_the_alerts() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True)
    series = Path(__file__).with_name("alerts.yml")
    subprocess.run(["promtool", "test", "rules", str(series)], check=True)
