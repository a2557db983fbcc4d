"""Tests of the plugins named in a file: entry points, settings, imports and conformance.

Collected by pytest in ``gatewayd plugin test``.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd.cli.authoring.kit import PLUGINS, conformance_of
from gatewayd.plugins.imports import imports_outside_contract
from gatewayd_hooks.host.catalog import Catalog, Entry
from gatewayd_hooks.host.kinds import KINDS
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.resources import EngineResources
from gatewayd_hooks.strategy import Kind


class _Offer:
    """The plugin of an entry point, with settings to build it."""

    entry: Entry
    settings: dict[str, Any]

    @property
    def host(self) -> PluginHost:
        """Plugin loader whose catalog has only this plugin."""
        return PluginHost(Catalog([self.entry]))

    def build(self) -> Any:  # noqa: ANN401 - any strategy, or a module
        """Build the strategy, or import the module, as a daemon does."""
        kind = Kind(self.entry.kind)
        if kind not in KINDS:
            return self.entry.load()
        return self.host.strategy(kind, self.entry.name, self.settings)


def _offered(entry: Entry, settings: dict[str, Any]) -> type:
    class TestOffer(_Offer):
        def test_its_entry_point_loads(self) -> None:
            kind = Kind(self.entry.kind)
            if kind in KINDS:
                self.host.info(kind, self.entry.name)
            for failure in self.host.hooked(kind, [] if kind in KINDS else [self.entry.name]):
                pytest.fail(failure.reason)

        def test_it_takes_its_settings_and_builds(self) -> None:
            self.build()

        def test_it_imports_the_contract_and_nothing_else_of_gatewayd(self) -> None:
            found = imports_outside_contract(self.entry.module)
            if found:
                pytest.fail("; ".join(found))

    TestOffer.entry, TestOffer.settings = entry, settings
    return TestOffer


def _conformance(entry: Entry, settings: dict[str, Any]) -> type:
    kit = conformance_of(Kind(entry.kind))
    # Imported here, since the classes of some kinds import torch.
    base: type = getattr(importlib.import_module(kit.module), kit.name)

    offer = _Offer()
    offer.entry, offer.settings = entry, settings
    members: dict[str, Any] = {"make": lambda self: offer.build()}
    if Kind(entry.kind) is Kind.LOGITS_PROCESSOR:
        members["requests"] = lambda self: _accepted_requests(self, entry.name)
    if Kind(entry.kind) is Kind.DRAFTER:
        members["opened"] = _opened_without_a_model
    return type("TestConformance", (base,), members)


class _ResourcesProxy:
    """Proxy of resources that records whether a drafter asked for a model."""

    def __init__(self, resources: EngineResources) -> None:
        self._resources = resources
        self.seeks_model = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        # Attributes of the resources that need a checkpoint.
        self.seeks_model |= name in ("target", "load_model", "read_heads", "folder")
        return getattr(self._resources, name)


@contextmanager
def _opened_without_a_model(tests: Any) -> Iterator[Any]:  # noqa: ANN401 - the kit's class
    """Open a drafter; skip the test if it needs a model."""
    proxy = _ResourcesProxy(tests.resources())
    drafter = tests.make()
    try:
        try:
            drafter.open(proxy)
        except Exception as error:
            if proxy.seeks_model:
                pytest.skip(f"it needs a model, which the plugin's own tests can provide: {error}")
            raise
        yield drafter
    finally:
        drafter.close()


def _accepted_requests(tests: Any, name: str) -> list[Any]:  # noqa: ANN401 - the kit's class
    """Return requests that a processor accepts: the kit's, or with its name in ``extra_args``."""
    from gatewayd_hooks.testing.logits import LogitsProcessorConformance, Sampling

    values: list[object] = [1.0, 1, True, "a", {}, []]
    candidates = [
        *LogitsProcessorConformance.requests(tests),
        *(Sampling(extra={name: value}) for value in values),
    ]
    prompt, output = np.array([5, 6], np.int32), np.zeros(0, np.int32)
    wanted = []
    with tests.opened() as processor:
        for params in candidates:
            try:
                is_wanted = processor.admit(0, params, prompt, output)
            except Exception:  # noqa: BLE001 - the processor refuses such requests
                continue
            if is_wanted:
                processor.remove(0)
                wanted.append(params)
    return wanted


def _suites(entry: dict[str, str], settings: dict[str, Any], conformance: bool) -> dict[str, type]:
    plugin = Entry(**entry)
    found = {f"TestOffer_{plugin.kind}_{plugin.name}": _offered(plugin, settings)}
    if conformance:
        found[f"TestConformance_{plugin.kind}_{plugin.name}"] = _conformance(plugin, settings)
    return found


# pytest collects classes by the module's globals. Without the variable the module defines none.
if PLUGINS in os.environ:
    for _plugin in json.loads(Path(os.environ[PLUGINS]).read_text("utf-8")):
        globals().update(_suites(**_plugin))
