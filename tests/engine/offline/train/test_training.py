"""Training: from corpus to a checkpoint that serves."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.train import __main__ as recipe
from gatewayd_engine.offline.train.checkpoint import config, write_checkpoint
from gatewayd_engine.offline.train.corpus import Corpus
from gatewayd_engine.offline.train.model import NANO, NANO_DRAFT, Llama, Size
from gatewayd_engine.offline.train.token_rows import pack
from gatewayd_engine.offline.train.tokenizer import SPECIAL_TOKENS, train_tokenizer
from gatewayd_engine.offline.train.training import Schedule, Trained, train

TINY = Size(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=96, vocab=600, head_dim=32)
SHORT = Schedule(steps=80, batch_rows=8, learning_rate=1e-2, warmup_steps=5, seed=2)


def trained_on(corpus: Corpus, tokenizer: Tokenizer, schedule: Schedule = SHORT) -> Trained:
    rows = pack(corpus, tokenizer, 96, seed=1)
    return train(rows, TINY, schedule, "cpu", lambda done, step, loss: None)


@pytest.fixture(scope="module")
def trained(corpus: Corpus, tokenizer: Tokenizer) -> Trained:
    return trained_on(corpus, tokenizer)


def test_special_tokens_have_the_ids_of_the_embedded_tokenizer(tokenizer: Tokenizer) -> None:
    shipped = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
    for number, token in enumerate(SPECIAL_TOKENS):
        assert tokenizer.token_to_id(token) == shipped.token_to_id(token) == number


def test_the_tokenizer_is_of_the_embedded_kind_and_loses_nothing(tokenizer: Tokenizer) -> None:
    shipped = json.loads((embedded.folder("nano") / "tokenizer.json").read_text())
    made = json.loads(tokenizer.to_str())
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens"):
        assert made[part] == shipped[part]
    text = "def naïve(x):\n\treturn 1234567 + x  # 漢字 🙂\r\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == 600


def test_rows_hold_whole_chats_and_every_token_of_the_code(
    corpus: Corpus, tokenizer: Tokenizer
) -> None:
    rows = pack(corpus, tokenizer, 96, seed=1)
    assert rows.shape[1] == 97
    assert np.array_equal(rows, pack(corpus, tokenizer, 96, seed=1))
    code = [tokenizer.encode(text).ids for text in corpus.code]
    chats = [tokenizer.encode(text).ids for text in corpus.chats]
    num_chat_tokens = sum(len(ids) for ids in chats if len(ids) <= 97)
    num_code_tokens = sum(len(ids) for ids in code)
    num_tokens = int((rows != SPECIAL_TOKENS.index("<|pad|>")).sum())
    # The code comes three times; ends of rows overlap by one, ends of files may fall away.
    assert num_chat_tokens + 2.9 * num_code_tokens < num_tokens
    assert num_tokens < num_chat_tokens + 3.2 * num_code_tokens
    start = SPECIAL_TOKENS.index("<|im_start|>")
    assert rows[0][0] == start


def test_the_loss_falls(trained: Trained) -> None:
    assert trained.steps == 80
    assert trained.first_loss == pytest.approx(np.log(600), abs=0.3)
    assert trained.last_loss < trained.first_loss - 1.0
    assert trained.validation_loss < trained.first_loss - 1.0


def test_the_same_seed_trains_the_same_model(
    trained: Trained, corpus: Corpus, tokenizer: Tokenizer
) -> None:
    again = trained_on(corpus, tokenizer)
    for one, other in zip(trained.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_too_few_rows_are_an_error(corpus: Corpus, tokenizer: Tokenizer) -> None:
    rows = pack(corpus, tokenizer, 96, seed=1)[:8]
    with pytest.raises(ValueError, match="8 rows are too few"):
        train(rows, TINY, SHORT, "cpu", lambda done, step, loss: None)


def test_a_schedule_needs_one_budget() -> None:
    with pytest.raises(ValueError, match="seconds or steps"):
        Schedule(seconds=1.0, steps=1)
    assert Schedule(seconds=10.0).done(5, 2.5) == 0.25


@pytest.mark.parametrize("num_shards", [1, 2])
def test_the_folder_loads_here_and_in_transformers_and_all_agree(
    num_shards: int,
    trained: Trained,
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if num_shards == 2:
        monkeypatch.setattr("gatewayd_engine.offline.train.checkpoint.SPLIT_ABOVE", 0)
    write_checkpoint(tmp_path, trained.model, tokenizer)
    shards = list(tmp_path.glob("*.safetensors"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in shards] == [0o644] * num_shards

    ids = torch.tensor(tokenizer.encode("<|im_start|>user\nWhat does json.dumps do?").ids)
    rounded = Llama(TINY).eval()
    rounded.load_state_dict(
        {k: v.bfloat16().float() for k, v in trained.model.state_dict().items()}
    )
    spec = read_spec(tmp_path)
    decoder = load(tmp_path, spec, torch.float32, "cpu", lambda fraction: None)
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)

    def attend(layer: int, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        key, value = key_value.transpose(0, 1).chunk(2)
        answer = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), key, value, is_causal=True, enable_gqa=True
        )
        return answer.transpose(0, 1).flatten(1)

    with torch.inference_mode():
        logits = rounded(ids[None])[0]
        ours = decoder.logits(decoder.hidden(ids, torch.arange(len(ids)), attend))
        torch.testing.assert_close(ours, logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(theirs(ids[None]).logits[0], logits, atol=1e-4, rtol=0)
    assert spec.eos_token_ids == (0, 2)


@pytest.mark.parametrize(("name", "size"), [("nano", NANO), ("nano-draft", NANO_DRAFT)])
def test_the_embedded_models_are_of_the_recipe(name: str, size: Size) -> None:
    folder = embedded.folder(name)
    assert json.loads((folder / "config.json").read_text()) == config(size)
    stored: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        stored.update(load_file(path))
    made = {f"model.{key}": value.shape for key, value in Llama(size).state_dict().items()}
    assert {key: value.shape for key, value in stored.items()} == made


def test_one_command_makes_a_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    files: list[Any],
) -> None:
    monkeypatch.setattr(recipe, "source_files", lambda root: files)
    monkeypatch.setattr(recipe, "MODELS", {"nano-draft": (TINY, 1.0)})
    monkeypatch.setattr(recipe, "ROW_LEN", 96)
    command = ["all", "--out", str(tmp_path), "--steps", "3", "--batch-rows", "8"]
    monkeypatch.setattr(recipe, "train_tokenizer", lambda corpus: train_tokenizer(corpus, 600))
    recipe.main([*command, "--device", "cpu"])
    assert read_spec(tmp_path / "nano-draft").vocab_size == 600
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 steps of 768 tokens, validation loss" in printed
