"""Guide threads: same masks as without; used only for slow masks."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

import gatewayd_guide_llguidance.strategy as module
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_guide_llguidance.strategy import Llguidance
from gatewayd_hooks.guiding import GuideSpec
from tests.plugins.guides.guides import VOCAB, opened

_SCHEMA = {"type": "array", "items": {"enum": ["one", "two", {"three": 3}]}}
_PATTERN = "[a-z]{3}( [0-9]+)*"


@pytest.mark.parametrize("batch", [1, 4, 5, 13])
@pytest.mark.parametrize("worth", [0.0, 60.0], ids=["threads", "here"])
def test_a_batch_gets_the_masks_of_each(
    monkeypatch: pytest.MonkeyPatch, batch: int, worth: float
) -> None:
    monkeypatch.setattr(module, "_WORTH_SECONDS", worth)
    in_threads = list[int]()
    real = Llguidance._fill_in_threads

    def noted(executor: Any, matchers: Any, masks: Any) -> None:
        in_threads.append(len(matchers))
        real(executor, matchers, masks)

    monkeypatch.setattr(Llguidance, "_fill_in_threads", staticmethod(noted))
    draw = random.Random(batch)
    with opened(Llguidance(LlguidanceConfig(threads=2))) as guide:
        specs = [GuideSpec("json_schema", json.dumps(_SCHEMA)), GuideSpec("regex", _PATTERN)]
        grammars = [guide.compile(spec) for spec in specs]
        matchers = [grammars[at % 2].start() for at in range(batch)]
        for _ in range(30):
            masks = np.full((batch, VOCAB // 32), -1, np.int32)
            guide.fill_many(matchers, masks)
            for matcher, mask in zip(matchers, masks, strict=True):
                alone = np.zeros(VOCAB // 32, np.int32)
                matcher.fork().fill(alone)
                assert (mask == alone).all()
                bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
                assert matcher.accept([draw.choice(np.flatnonzero(bits).tolist())]) == 1
    assert set(in_threads) == ({batch - 4} if worth == 0.0 and batch > 4 else set())
