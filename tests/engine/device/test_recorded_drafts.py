"""Captured steps with drafts, and a small model's, noted and done again as strictly as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.device import drafted
from gatewayd_engine.kernels.twins import TorchKernels
from tests.engine.core.guessing import Guess, guess_with
from tests.engine.core.prompts import PROMPTS
from tests.engine.core.test_heads import chats
from tests.engine.core.test_speculation import speculating
from tests.engine.device.recorded import RecordedWhole, beside

Make = Callable[..., Any]
pytestmark = pytest.mark.parametrize("make_device_engine", ["own"], indirect=True)


@pytest.fixture
def capture() -> RecordedWhole:
    """In place of the one that launches each time."""
    return RecordedWhole()


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins that ask the host are called in each replay; see ``conftest``."""
    attend: Any = TorchKernels.decode_attention

    def narrowed(
        self: Any, query: Any, layer: Any, indptr: Any, pages: Any, *rest: Any, **named: Any
    ) -> None:
        few = pages[: max(int(indptr.numpy()[-1]), 1)]
        attend(query, layer, indptr, few, *rest, **named)

    monkeypatch.setattr(TorchKernels, "decode_attention", narrowed)
    for name in ("decode_attention", "slots"):
        beside(monkeypatch, TorchKernels, name)
    monkeypatch.setattr(drafted, "_WIDTHS", (4,))


@pytest.mark.usefixtures("small_model")
def test_replays_verify_trees(make_device_engine: Make, capture: RecordedWhole) -> None:
    fields: dict[str, Any] = {"max_running": 2, "max_model_len": 256}
    asked: dict[str, Any] = {"max_tokens": 14, "ignore_eos": True}
    plain = make_device_engine(**fields)
    wanted = [plain.generate(prompt, **asked) for prompt in PROMPTS[:2]]
    known = [prompt + answer for prompt, answer in zip(PROMPTS, wanted, strict=False)]
    engine = guess_with(speculating(make_device_engine, **fields), Guess(known, 0.9, "tree"))
    before = len(capture.replays)
    ids = [engine.submit(prompt, **asked)[0] for prompt in PROMPTS[:2]]
    done = engine.run()
    assert [done[i].tokens for i in ids] == wanted
    assert len(capture.replays) - before > 3
    assert engine.core.stats.accepted_tokens > 8


def test_replays_of_a_small_model_go_on_from_their_own_guesses(
    make_device_engine: Make, capture: RecordedWhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"max_running": 2, "max_model_len": 256}
    prompts = [prompt[-60:] for prompt in chats()[:2]]
    plain = make_device_engine(**fields)
    wanted = [plain.generate(prompt, max_tokens=14) for prompt in prompts]
    kept = []
    for is_recorded in (True, False):
        if not is_recorded:
            monkeypatch.setattr(capture, "whole", lambda launches: launches)
        engine = make_device_engine(
            drafter=StrategyChoice("draft_model", {"min_confidence": 0.0}),
            spec_controller=StrategyChoice("fixed", {"drafts": 3}),
            **fields,
        )
        capture.replays.clear()
        ids = [engine.submit(prompt, max_tokens=14)[0] for prompt in prompts]
        done = engine.run()
        assert [done[i].tokens for i in ids] == wanted
        # Of each step one of what is new, two guesses more, and the verification.
        assert (len(capture.replays) > 12) is is_recorded
        kept.append(engine.core.stats.accepted_tokens)
    assert kept[0] == kept[1] > 5
