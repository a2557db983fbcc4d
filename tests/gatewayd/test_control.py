"""Changes that a running daemon refuses, and how it says so; engines agree to everything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gatewayd.config import Config
from gatewayd.control import Control, Refused
from gatewayd.engines.fleet import EngineFleet
from gatewayd.plugging import Plugged

SECRET = "correct-horse-battery-staple-42"


class Swaps:
    """Engines that take whatever they are given."""

    def __init__(self) -> None:
        self.made: list[tuple[str, list[str]]] = []

    async def swap(self, kind: str, choices: list[Any]) -> bool:
        """See ``EngineSwaps``."""
        self.made.append((kind, [choice.name for choice in choices]))
        return False


def control_of(config: Config) -> tuple[Control, Swaps]:
    """A control over engines that agree, with the installed plugins."""
    swaps = Swaps()
    plugged = Plugged.load(config, model="nano")
    fleet = cast(EngineFleet, SimpleNamespace(swaps=swaps, router=plugged.router))
    return Control(config, fleet, plugged), swaps


@pytest.fixture
def marked() -> tuple[Control, Swaps]:
    """Answers carry a mark."""
    table = {"strategies": ["bias", "watermark"], "watermark": {"secret": SECRET}}
    return control_of(Config(logits_processor=table))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "settings", "answer"),
    [
        (
            ["bias", "watermark", "bias"],
            {},
            "[logits_processor]: strategies is ['bias', 'watermark', 'bias']: bias is named twice",
        ),
        (["bias", 3], {}, "[logits_processor]: strategies.1 is 3: it should be a valid string"),
        ("bias", {}, "[logits_processor]: strategies is 'bias': it should be a valid list"),
    ],
)
async def test_what_a_slot_cannot_hold_is_refused_in_a_sentence(
    marked: tuple[Control, Swaps], names: Any, settings: dict[str, Any], answer: str
) -> None:
    control, swaps = marked
    with pytest.raises(Refused) as refusal:
        await control.swap("logits_processor", names, settings, "me")
    assert str(refusal.value) == answer
    assert not swaps.made


def test_a_limit_out_of_its_bounds_is_refused_in_a_sentence(marked: tuple[Control, Swaps]) -> None:
    with pytest.raises(Refused) as refusal:
        marked[0].limit({"max_waiting_tokens": 0}, "me")
    assert str(refusal.value) == (
        "[queue]: max_waiting_tokens is 0: it should be greater than or equal to 1"
    )


async def test_a_setting_that_needs_a_restart_stays_while_its_strategy_is_left_out() -> None:
    drafter = {"strategy": "medusa", "medusa": {"heads": "a"}}
    control, swaps = control_of(Config(drafter=drafter))  # type: ignore[arg-type]
    for name in ("medusa", "none", "ngram"):
        await control.swap("drafter", [name], {}, "me")
        with pytest.raises(Refused, match=r"^\[drafter.medusa\] heads needs a restart$"):
            await control.swap("drafter", ["medusa"], {"medusa": {"heads": "b"}}, "me")
    await control.swap("drafter", ["medusa"], {"medusa": {"heads": "a"}}, "me")
    assert [names for _, names in swaps.made] == [["medusa"], [], ["ngram"], ["medusa"]]
