"""Dummy 8B model: Llama 3.1 8B's shape, and the embedded model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from gatewayd.cli.bench.dummy import write_llama_8b
from gatewayd.cli.bench.served.workloads import WORKLOADS, prompts, words_of
from gatewayd.cli.bench.target import subject
from gatewayd.config.load import ConfigError
from gatewayd.engines.replicas.launch import engine_config
from gatewayd.text.text_model import TextModel
from gatewayd_engine.model import embedded
from gatewayd_engine.model.spec import read_spec


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("llama-8b")
    write_llama_8b(made)
    return made


def ids_of(folder: Path, text: str) -> list[int]:
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def test_it_has_as_many_parameters_as_the_real_one(folder: Path) -> None:
    spec = read_spec(folder)
    c = json.loads((folder / "config.json").read_text())
    assert (spec.architecture, spec.vocab_size, spec.max_model_len) == (
        "LlamaForCausalLM",
        128_256,
        131_072,
    )
    hidden, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
    attention = (2 * heads + 2 * kv) * c["head_dim"] * hidden
    layer = attention + 3 * hidden * c["intermediate_size"] + 2 * hidden
    total = 2 * c["vocab_size"] * hidden + c["num_hidden_layers"] * layer + hidden
    assert total == 8_030_261_248


def test_its_tokenizer_has_every_id_and_the_same_tokens(folder: Path) -> None:
    text = "def w7(x):\n    return x w100000 Ġw5000"
    assert ids_of(folder, text) == ids_of(embedded.folder(), text)
    assert TextModel.from_folder(folder).template is not None
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(128_256))


def test_prompts_have_exactly_the_tokens_asked_for(folder: Path) -> None:
    words = words_of(folder)
    assert words == words_of(embedded.folder())
    items = prompts(words, WORKLOADS["c32"], seed=3)
    first, second = next(items), next(items)
    assert isinstance(first.prompt, str)
    assert isinstance(second.prompt, str)
    assert len(ids_of(folder, first.prompt)) == len(ids_of(folder, second.prompt)) == 512
    assert first.output_tokens == 128
    assert first.prompt[:40] != second.prompt[:40]
    assert next(prompts(words, WORKLOADS["c32"], seed=3)) == first


def test_a_word_that_no_merge_leads_to_is_not_in_prompts(tmp_path: Path) -> None:
    tokenizer = json.loads((embedded.folder() / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["Ġzzqxzz"] = len(vocabulary)
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert words_of(tmp_path) == words_of(embedded.folder())


def test_a_gpu_gets_sizes_of_its_own_that_options_overrule() -> None:
    given = {"model.dtype": "auto", "engine.max_running": 32, "engine.kv_memory": None}
    with subject("llama-8b", "cuda", given) as found:
        config = found.config()
        assert (found.folder / "tokenizer_config.json").is_file()
        variables = found.environment()
    assert not found.folder.exists()
    assert (found.name, found.arithmetic) == ("llama-8b", "bfloat16")
    assert config.model.dummy_weights
    assert (config.engine.device, config.engine.max_running) == ("cuda", 32)
    told = engine_config(config)
    assert (told.max_running, told.max_batch_tokens, told.max_model_len) == (32, 8192, 16_512)
    assert told.kv_bytes is None
    assert variables["GATEWAYD_ENGINE__MAX_RUNNING"] == "32"
    assert variables["GATEWAYD_MODEL__DUMMY_WEIGHTS"] == "True"
    with subject(None, "cpu", {"model.dtype": "auto"}) as found:
        assert engine_config(found.config()).max_batch_tokens == 512
        assert (found.name, found.arithmetic) == ("nano", "float32")
    with subject(None, "cuda", {"model.dtype": "auto"}) as found:
        # The embedded model takes fewer tokens than the longest workload has.
        assert engine_config(found.config()).max_model_len is None
        assert (found.name, found.arithmetic) == ("nano", "bfloat16")


def test_what_is_wrong_is_said_by_its_option() -> None:
    with pytest.raises(ValueError, match="'/nowhere' is neither llama-8b nor a folder"):
        subject("/nowhere", "cpu", {}).__enter__()
    with pytest.raises(ConfigError, match="flag --device"):
        subject(None, "tpu", {}).__enter__()
