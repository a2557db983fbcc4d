"""Log context: failures of a request in a step or strategy carry its ids."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.logs import EngineLogLines
from gatewayd_engine.process.messages import SamplingParams, Submit

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def test_a_request_that_fails_alone_is_named(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    heard = logging.StreamHandler(io.StringIO())
    heard.setFormatter(EngineLogLines(0, is_json=False))
    logging.getLogger().addHandler(heard)
    try:
        (good,) = engine.submit(list(range(300, 320)), max_tokens=2, ignore_eos=True)
        bad = engine.submit([1], max_tokens=1)[0] + 1
        engine.answers[bad] = type(engine.answers[good])()
        prompt = np.arange(500, 520, dtype=np.int32)
        engine.core.submit(
            Submit(
                [bad],
                prompt.tobytes(),
                SamplingParams(max_tokens=2),
                request_id="req_7",
                x_request_id="mine",
            )
        )
        launch = engine.core._runner.launch

        def breaks(batch: Any) -> Any:
            if bad in batch.sequences.tolist():
                raise RuntimeError("no")
            return launch(batch)

        monkeypatch.setattr(engine.core._runner, "launch", breaks)
        engine.run()
    finally:
        logging.getLogger().removeHandler(heard)
    assert engine.answers[bad].finished.error[0] == "internal_error"
    assert len(engine.answers[good].tokens) == 2
    (line,) = heard.stream.getvalue().splitlines()
    assert "request failed in a step: RuntimeError('no')" in line
    assert line.endswith(" request_id=req_7 x_request_id=mine")
