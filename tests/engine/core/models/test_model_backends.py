"""Models that a plugin computes: tokens, features and refusals, against transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.model.json_fields import SpecError
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.process.config import EngineConfigError, StrategyChoice
from tests.engine.core.models.family_run import family_answers, outcome_of
from tests.engine.core.models.tiny_families import best_tokens, write_tiny

MakeEngine = Callable[..., Any]
FAMILIES = (
    *("gpt2", "olmo2", "opt", "gpt_oss", "deepseek_v3", "gemma3_text", "granitemoe", "bert"),
    *("emu3", "gemma4"),
)
"""Learned and rotary positions, biases, sinks, latent attention, windows, experts, an encoder's,
and text models of configurations with more than text."""
TRANSFORMERS = StrategyChoice("transformers")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of a family, made once."""
    made: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            write_tiny(made[family], family)
        return made[family]

    return of


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_cached_prefixes_and_preemption_change_no_token(
    family: str, tiny: Callable[[str], Path]
) -> None:
    assert outcome_of(tiny(family), family).is_equal


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_a_family_of_the_engine_answers_the_same_through_a_plugin(tiny: Any, family: str) -> None:
    folder = tiny(family)
    native = family_answers(folder, StrategyChoice("native"))
    assert native.tokens == family_answers(folder, TRANSFORMERS).tokens
    assert native.backend == "native"


def test_auto_takes_a_plugin_only_where_native_cannot_serve(
    make_engine: MakeEngine, tiny: Any
) -> None:
    assert "model_backend" not in make_engine(tiny("llama")).info.strategies
    assert make_engine(tiny("gpt2")).info.strategies["model_backend"] == "transformers"
    with pytest.raises(SpecError, match="GPT2LMHeadModel is not supported"):
        make_engine(tiny("gpt2"), model_backend=StrategyChoice("native"))


def test_features_of_sampling_work_with_a_plugins_model(make_engine: MakeEngine, tiny: Any) -> None:
    engine = make_engine(tiny("olmo2"), drafter=StrategyChoice("ngram"), kv_pages=64)
    prompt = [3, 4, 5, 6] * 6
    greedy = engine.generate(prompt, max_tokens=12, ignore_eos=True)
    assert greedy == best_tokens(tiny("olmo2"), "olmo2", prompt + greedy, len(prompt))
    several = engine.submit(
        prompt, n=2, max_tokens=6, temperature=1.0, seed=5, logprobs=3, ignore_eos=True
    )
    answers = engine.run()
    assert answers[several[0]].tokens != answers[several[1]].tokens
    assert all(len(answers[each].logprobs) == 6 for each in several)


@pytest.mark.parametrize("codec", ["int8", "bf16"])
def test_codecs_and_tiers_store_a_plugins_keys(
    make_engine: MakeEngine, tiny: Any, codec: str
) -> None:
    engine = make_engine(
        tiny("gpt2"),
        kv_codec=StrategyChoice(codec),
        kv_tiers=[StrategyChoice("host")],
        kv_pages=12,
    )
    rng = random.Random(2)
    prompts = [[rng.randrange(3, 320) for _ in range(70)] for _ in range(3)]
    first = [engine.generate(each, max_tokens=4, ignore_eos=True) for each in prompts]
    assert first == [engine.generate(each, max_tokens=4, ignore_eos=True) for each in prompts]


@pytest.mark.parametrize("quantizer", ["int8", "int4"])
def test_matrices_are_quantized_while_they_are_loaded(
    make_engine: MakeEngine, tiny: Any, quantizer: str
) -> None:
    floats = make_engine(tiny("gpt2"))
    settings = {"group_size": 32} if quantizer == "int4" else {}
    engine = make_engine(tiny("gpt2"), quantizer=StrategyChoice(quantizer, settings))
    assert engine.info.weight_bytes < 0.6 * floats.info.weight_bytes
    prompt = list(range(3, 60))
    answers = [one.generate(prompt, max_tokens=8, ignore_eos=True) for one in (floats, engine)]
    if quantizer == "int8":
        assert answers[0][0] == answers[1][0]
    assert len(answers[1]) == 8


def test_what_cannot_be_carried_is_refused_by_name(
    make_engine: MakeEngine, tiny: Any, tmp_path: Path
) -> None:
    for family, reason in (
        ("mamba", "MambaForCausalLM .* recurrent state"),
        ("bart", "BartForCausalLM .* no position ids"),
        ("bloom", "BloomForCausalLM .* cannot be replaced"),
        ("megatron-bert", "MegatronBertForCausalLM .* cannot be replaced"),
    ):
        folder = tmp_path / family
        write_tiny(folder, family)
        with pytest.raises(SpecError, match=reason):
            make_engine(folder)
    with pytest.raises(SpecError, match="takes between 1 and 512"):
        make_engine(tiny("gpt2"), max_model_len=513)
    for backend in (StrategyChoice("native"), StrategyChoice("auto"), TRANSFORMERS):
        with pytest.raises(EngineConfigError, match="GptOssForCausalLM has attention sinks"):
            make_engine(
                tiny("gpt_oss"), kv_compression=StrategyChoice("heavy"), model_backend=backend
            )
    with pytest.raises(EngineConfigError, match=r"GPT2LMHeadModel is not supported.*dummy_weights"):
        make_engine(tiny("gpt2"), dummy_weights=True)
    changed = tmp_path / "quantized"
    changed.mkdir()
    config = json.loads((tiny("gpt2") / "config.json").read_text())
    (changed / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "awq"}})
    )
    with pytest.raises(SpecError, match="float checkpoints only"):
        make_engine(changed)


def test_code_of_a_checkpoint_is_not_run(make_engine: MakeEngine, tmp_path: Path) -> None:
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('it was run')")
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "own",
                "architectures": ["OwnForCausalLM"],
                "auto_map": {"AutoConfig": "modeling_own.OwnConfig"},
            }
        )
    )
    with pytest.raises(SpecError, match="auto_map names is not run"):
        make_engine(tmp_path)


def test_weights_of_another_model_are_named(make_engine: MakeEngine, tiny: Any) -> None:
    import shutil

    folder = tiny("gpt2").with_name("other")
    shutil.copytree(tiny("gpt2"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 5}))
    with pytest.raises(LoadError, match=r"missing tensors: transformer\.h\.4"):
        make_engine(folder)


def test_a_missing_library_says_how_to_install_it(
    make_engine: MakeEngine, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("gatewayd_model_transformers.strategy.version", missing)
    with pytest.raises(SpecError, match=r"pip install 'gatewayd\[transformers\]'"):
        make_engine(tiny("gpt2"))
