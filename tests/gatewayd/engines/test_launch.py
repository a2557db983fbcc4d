"""Engine launch: quantizer settings passed to engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gatewayd.config.strategies import QuantizerTable
from gatewayd.config.tables import Config
from gatewayd.engines.replicas.launch import context_len, engine_config
from gatewayd_engine.process.config import StrategyChoice

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


def test_an_engine_is_told_what_multiplies_with_its_settings() -> None:
    table: Any = {"kernels": ["int8", "awq"], **TABLES}
    told = engine_config(Config(quantizer=table)).quantizer_kernels
    assert told == [StrategyChoice("int8"), StrategyChoice("awq", {"keep": True})]
    assert engine_config(Config()).quantizer_kernels == []
    with pytest.raises(ValidationError, match="awq is listed twice"):
        Config(quantizer=QuantizerTable(kernels=["awq", "awq"]))


def test_the_checkpoint_decides_if_nothing_else_is_said() -> None:
    assert engine_config(Config()).quantizer == StrategyChoice("auto")


def test_the_context_is_that_of_a_nested_language_model_up_to_what_is_served(
    tmp_path: Path,
) -> None:
    text = {"model_type": "llama4_text", "max_position_embeddings": 10_485_760}
    values = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert context_len(Config(), tmp_path) == 1 << 21
    config: Any = {"model": {"max_model_len": 4096}}
    assert context_len(Config(**config), tmp_path) == 4096
