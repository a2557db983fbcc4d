"""Output parsers: chosen by configuration or by the model's template."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from gatewayd.config.tables import Config
from gatewayd.plugins.parsers import FencedParser, ModelParsers, load_parsers
from gatewayd.text.output_parts import Parsers
from gatewayd.text.text_model import TextModel
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.parsing import Part, Text
from gatewayd_hooks.resources import GatewayResources
from gatewayd_hooks.strategy import Kind


def chosen(template: str, **tables: str) -> ModelParsers:
    config = Config.model_validate({kind: {"strategy": name} for kind, name in tables.items()})
    plugin_times = PluginTimes(0.05)
    host = PluginHost(Catalog.installed())
    resources = GatewayResources("model", 1, template)
    return load_parsers(config, host, resources, plugin_times, Watchdog(plugin_times, 2.0))


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("", None, None),
        ("{{ '<tool_call>' }}", "hermes", None),
        ("{{ '[TOOL_CALLS]' }}", "mistral", None),
        ("{{ '<|python_tag|>' }}", "llama3", None),
        ("{{ '<tool_call>' }}{{ '<think>' }}", "hermes", "think"),
    ],
)
def test_a_template_says_who_reads(template: str, tools: str | None, reasoning: str | None) -> None:
    parsers = chosen(template)
    assert (parsers.tools and parsers.tools.name) == tools
    assert (parsers.reasoning and parsers.reasoning.name) == reasoning


def test_the_embedded_model_calls_as_hermes_does_and_does_not_reason(text: TextModel) -> None:
    assert text.template is not None
    parsers = chosen(text.template.source)
    assert parsers.tools is not None
    assert parsers.tools.name == "hermes"
    assert parsers.reasoning is None
    assert parsers.readers((), prompt_end="") is None, "a plain chat costs nothing"


def test_the_configuration_is_over_the_template() -> None:
    parsers = chosen("<tool_call><think>", tool_parser="llama3", reasoning_parser="none")
    assert parsers.tools is not None
    assert parsers.tools.name == "llama3"
    assert parsers.reasoning is None
    parsers.close()


def test_a_parser_that_is_not_installed_is_named() -> None:
    with pytest.raises(PluginError, match=r"tool_parser\.hermess is not installed"):
        chosen("", tool_parser="hermess")


def test_ids_stay_what_they_are_without_a_parser() -> None:
    assert ModelParsers().call_id("x") == "x"


class Sleepy:
    """Reads everything as text; at one piece it does not come back."""

    def parser(self, *_: object) -> Sleepy:
        return self

    def feed(self, text: str) -> Sequence[Part]:
        if text == "sleep":
            time.sleep(60)
        return [Text(text)]

    def finish(self) -> Sequence[Part]:
        return []


class Counting(Watchdog):
    """Counts how often it is armed."""

    count = 0

    def arm(self, seconds: float | None = None) -> None:
        self.count += 1
        super().arm(seconds)


def test_the_timer_is_set_once_for_many_pieces_and_still_ends_one() -> None:
    plugin_times = PluginTimes(0.05)
    watchdog = Counting(plugin_times, 0.5)
    seat: FencedParser[Any] = FencedParser(
        Kind.REASONING_PARSER, Sleepy(), "sleepy", plugin_times, watchdog
    )
    reader = Parsers(reasoning=seat.parser, armed=seat.armed).reader()
    watchdog.count = 0
    assert reader.read(["a"] * 64, is_last=False) == [Text("a" * 64)]
    assert (watchdog.count, watchdog.is_armed) == (1, False)
    began = time.perf_counter()
    assert reader.read(["b", "sleep", "c"], is_last=True) == [Text("bsleepc")]
    assert time.perf_counter() - began < 30
    assert (watchdog.count, watchdog.is_armed) == (2, False)
    assert [account.calls for account in plugin_times.costs().values()] == [67], "with the making"
