"""What engines are told of quantizers."""

from __future__ import annotations

from typing import Any

import pytest

from gatewayd.config import Config
from gatewayd.launch import engine_config
from gatewayd_engine.config import StrategyChoice

TABLES = {"int8": {}, "awq": {"keep": True}}


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("auto", StrategyChoice("auto", TABLES)),
        ("none", None),
        ("awq", StrategyChoice("awq", {"keep": True})),
        ("other", StrategyChoice("other")),
    ],
)
def test_an_engine_is_told_what_to_load_its_model_with(strategy: str, told: Any) -> None:
    table: Any = {"strategy": strategy, "skip": ["lm_head"], **TABLES}
    config = engine_config(Config(quantizer=table))
    assert config.quantizer == told
    assert config.quantizer_skip == ["lm_head"]


def test_the_checkpoint_decides_if_nothing_else_is_said() -> None:
    assert engine_config(Config()).quantizer == StrategyChoice("auto")
