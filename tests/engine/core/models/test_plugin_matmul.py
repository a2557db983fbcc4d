"""Plugin matmul: answers of engines that use one, and fallback from a bad one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from gatewayd_engine.process.plugin_faults import StrategyFault
from gatewayd_hooks.host.errors import NotInstalled
from tests.engine.core.conftest import Harness, build
from tests.engine.core.transformers_oracle import theirs
from tests.engine.float64_matmul_plugin import Plain, catalog
from tests.engine.four_bit_format_plugin import announce, pack

PROMPT = [1, *range(60, 90)]
CATALOG = catalog()
AUTO = StrategyChoice("auto")
PLAIN = StrategyChoice("plain")
WIDE = 96
"""Columns of what leads back from the feed-forward part."""
Make = Callable[..., Harness]


def broken(way: str) -> StrategyChoice:
    return StrategyChoice("broken", {"way": way})


@pytest.fixture
def tiny(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint of few bits, with biases."""
    folder = make_checkpoint(tmp_path / "tiny", "llama_biases", max_shard_size="1GB")
    pack(folder)
    return folder


@pytest.fixture
def engine(tiny: Path) -> Iterator[Make]:
    """Engines on that checkpoint which know the strangers' plugins; closed afterwards."""
    opened: list[Harness] = []

    def make(*kernels: StrategyChoice, **more: Any) -> Harness:
        fields = {"quantizer": AUTO, "quantizer_kernels": list(kernels), **more}
        opened.append(build(tiny, CATALOG, **fields))
        return opened[-1]

    yield make
    for one in opened:
        one.core.check()
        one.core.strategies.close()


def answer(engine: Harness, count: int = 24) -> list[int]:
    return engine.generate(PROMPT, max_tokens=count, ignore_eos=True)


def test_tokens_are_those_of_transformers_with_the_same_numbers(
    engine: Make,
    make_checkpoint: Callable[..., Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from safetensors.torch import save_file

    with caplog.at_level(logging.INFO):
        ours = engine(PLAIN)
    assert "quantizer.plain multiplies 12 of 12 low-bit matrices" in caplog.text
    dense = make_checkpoint(tmp_path / "dense", "llama_biases", max_shard_size="1GB")
    numbers = pack(dense)
    announce(dense, None)
    save_file(numbers, dense / "model.safetensors", {"format": "pt"})
    assert answer(ours) == theirs(dense, PROMPT, 24)
    # What is kept as float64 takes eight times as much as codes in bytes.
    assert ours.info.weight_bytes > 2 * engine().info.weight_bytes


def test_the_first_that_takes_a_matrix_has_it(
    engine: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    take = Plain.take

    def noting(self: Plain, form: Any, *rest: Any) -> Any:
        seen.append(form.columns)
        return take(self, form, *rest)

    monkeypatch.setattr(Plain, "take", noting)
    with caplog.at_level(logging.INFO):
        some = engine(broken("declines"), StrategyChoice("plain", {"columns": WIDE}))
    assert seen == [WIDE] * 3, "of three layers what leads back from the feed-forward part"
    assert "quantizer.plain multiplies 3 of 12" in caplog.text
    assert [r.levelname for r in caplog.records if "broken multiplies 0 of 12" in r.message] == [
        "WARNING"
    ]
    assert answer(some) == answer(engine()), "in float64, and in float32 by the engine"


def test_whoever_multiplies_other_numbers_has_other_pages_and_is_in_the_report(
    engine: Make,
) -> None:
    made = [engine(), engine(PLAIN), engine(PLAIN), engine(StrategyChoice("plain", {"columns": 8}))]
    names = [one.core.strategies.identify() for one in made]
    assert names[1] == names[2]
    assert len(set(names)) == 3
    rows = {row.name: row for row in made[1].core.strategies.report() if row.kind == "quantizer"}
    assert rows["plain"].state == rows["nibbles"].state == "active"
    assert rows["plain"].calls > 12
    assert made[1].info.strategies["quantizer"] == "nibbles"


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ("suits", "raised KeyError: 4; take it out of .quantizer. kernels"),
        ("take", "raised ArithmeticError: no room; take it out of .quantizer. kernels"),
        ("call", "raised ArithmeticError: not with me; take"),
        ("shape", r"made \[2, 127\] of \[2, 64\], not \[2, 128\]; take"),
        ("type", r"made torch.float64 on cpu, not torch.float32 on cpu; take"),
        ("numbers", "made numbers that are far from those of the weight, for 2 rows; take"),
        ("many", "made numbers that are far from those of the weight, for 65 rows; take"),
        ("last line", "made numbers that are far from those of the weight, for 65 rows; take"),
    ],
)
def test_one_that_fails_while_loading_ends_the_start_by_name_and_matrix(
    way: str, sentence: str, engine: Make
) -> None:
    where = r"model\.layers\.0\.self_attn\.qkv_proj: quantizer\.broken "
    with pytest.raises(LoadError, match=f"^{where}{sentence}"):
        engine(broken(way))


@pytest.mark.parametrize(
    ("choice", "error", "sentence"),
    [
        (
            broken("open"),
            EngineConfigError,
            "kernels: quantizer.broken: its library is not here; pip",
        ),
        (
            StrategyChoice("int8"),
            EngineConfigError,
            "kernels has int8, which provides no matmul kernel",
        ),
        (StrategyChoice("plane"), NotInstalled, "did you mean quantizer.plain"),
    ],
)
def test_what_cannot_multiply_is_refused_before_anything_is_read(
    choice: StrategyChoice, error: type[Exception], sentence: str, engine: Make, tiny: Path
) -> None:
    (tiny / "model.safetensors").write_bytes((tiny / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(error, match=sentence):
        engine(choice)


def test_one_that_raises_in_a_step_ends_the_engine_and_the_next_does_without(
    engine: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ours = engine(broken("step"))
    for prompt in (PROMPT, PROMPT[:9]):
        ours.submit(prompt, max_tokens=4)
    with pytest.raises(StrategyFault, match=r"quantizer\.broken: .*not today") as fault:
        ours.run()
    left_out = ours.core.strategies.to_quarantine(fault.value)
    assert left_out == ["quantizer", "broken"]
    with caplog.at_level(logging.ERROR):
        again = engine(broken("step"), quarantined=[left_out])
    assert "quantizer.broken is quarantined: the engine's own kernels are used" in caplog.text
    assert answer(again) == answer(engine())
    assert again.core.strategies.identify() == engine().core.strategies.identify()


def test_it_is_closed_with_the_engine(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Plain] = []
    monkeypatch.setattr(Plain, "close", lambda self: closed.append(self))
    strategies = build(tiny, CATALOG, quantizer=AUTO, quantizer_kernels=[PLAIN]).core.strategies
    assert closed == []
    strategies.close()
    assert len(closed) == 1
