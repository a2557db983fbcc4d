"""gpt-oss on a device: sinks in steps with drafts, experts in MXFP4 as released."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_mxfp4 import OURS, folders
from tests.engine.runner.gpu.conftest import mixed_prompts

__all__ = ["folders"]

Make = Callable[..., Any]
captured = pytest.mark.parametrize("make_device_engine", ["captured"], indirect=True)
NEW_TOKENS = 10


@captured
def test_released_experts_answer_as_their_numbers_do(
    folders: tuple[Path, Path],
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    packed, plain = folders
    with caplog.at_level("WARNING"):
        engine = make_device_engine(
            packed, catalog=OURS, quantizer=StrategyChoice("auto"), max_batch_tokens=48
        )
    assert not [each for each in caplog.messages if "one at a time" in each]
    assert device_runner(engine)._decoder.is_capturable
    prompts = [prompt for prompt in mixed_prompts(7, 320, 130, 2) if len(prompt) > 5]
    ids = [engine.submit(p, max_tokens=NEW_TOKENS, ignore_eos=True)[0] for p in prompts]
    answers = engine.run()
    model = golden_model(plain)
    for prompt, number in zip(prompts, ids, strict=True):
        assert answers[number].tokens == model.continued(prompt, NEW_TOKENS, ())


@captured
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_drafts_change_no_token(
    drafter: str, checkpoint: Callable[[str], Path], make_device_engine: Make
) -> None:
    folder = checkpoint("gpt_oss")
    settings = {} if drafter == "ngram" else {"model": str(folder), "min_confidence": 0.0}
    engine = make_device_engine(
        folder,
        drafter=StrategyChoice(drafter, settings),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
        max_running=4,
        max_model_len=256,
    )
    # Long enough for the window to hide the beginning.
    prompts = [[3, 4, 5, 6] * 8, list(range(20, 80))]
    ids = [engine.submit(prompt, max_tokens=24, ignore_eos=True)[0] for prompt in prompts]
    answers = engine.run()
    for prompt, number in zip(prompts, ids, strict=True):
        assert answers[number].tokens == golden_model(folder).continued(prompt, 24, ())
    assert engine.core.stats.draft_tokens > 0
    if drafter == "draft_model":
        # With the sinks it drafts what the model says.
        assert engine.core.stats.accepted_tokens > 24
