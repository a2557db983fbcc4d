"""Draft head training: generated data, learning, storage."""

from __future__ import annotations

import contextlib
import dataclasses
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
from gatewayd_engine.offline.train import __main__ as recipe
from gatewayd_engine.offline.train.answers import (
    HELD_OUT,
    LONGEST,
    Answers,
    chat_prompts,
    held_out,
    prompts,
    write_answers,
)
from gatewayd_engine.offline.train.heads import EagleHead, MedusaHeads
from gatewayd_engine.offline.train.heads_checkpoint import write_heads
from gatewayd_engine.offline.train.heads_training import RANKS, base_model, batches, train_heads
from gatewayd_engine.offline.train.stdlib_symbols import SourceFile, symbols
from gatewayd_engine.offline.train.training import Schedule
from gatewayd_engine.runner.draft_model import row_model
from gatewayd_engine.speculation.draft_models import load_draft_model

torch.set_num_threads(1)
NANO = embedded.folder("nano")
SHORT = Schedule(steps=10, learning_rate=2e-3, warmup_steps=5, weight_decay=0.01, seed=2)


@pytest.fixture(scope="module")
def begun(files: list[SourceFile]) -> list[tuple[list[int], int]]:
    return prompts(files, Tokenizer.from_file(str(NANO / "tokenizer.json")), 1, 10, 4)


@pytest.fixture(scope="module")
def answers(begun: list[tuple[list[int], int]]) -> Answers:
    model = load_draft_model(str(NANO), 8, LONGEST, torch.float32, "cpu", row_model)
    return write_answers(model, begun, 8, 1, lambda done, count: None)


def test_prompts_are_not_about_what_is_held_out(files: list[SourceFile]) -> None:
    found = symbols(files)
    kept = {symbol.qualified for symbol in found} - {s.qualified for s in held_out(found)}
    assert len(kept) == len(found) - len(found[::HELD_OUT])
    for prompt in chat_prompts(held_out(found), seed=3, count=100):
        assert prompt.endswith("<|im_start|>assistant\n")
        assert not any(f"{name} " in prompt or f"{name}?" in prompt for name in kept)


def test_answers_are_those_of_the_model(
    begun: list[tuple[list[int], int]], answers: Answers
) -> None:
    """Every second one is greedy: transformers would write the same."""
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_pretrained(NANO, dtype=torch.float32).eval()
    for i in range(1, 6, 2):
        prompt, begin = begun[i]
        ids = answers.ids[i, : answers.lengths[i]]
        assert ids[: len(prompt)].tolist() == prompt
        assert answers.begins[i] == begin
        with torch.no_grad():
            said = model(torch.from_numpy(ids[None].astype(np.int64))).logits[0].argmax(-1)
        assert ids[len(prompt) :].tolist() == said[len(prompt) - 1 : -1].tolist()
        assert ids[-1] in (0, 2) or len(ids) == LONGEST


def test_answers_that_are_saved_are_read_back(answers: Answers, tmp_path: Path) -> None:
    answers.save(tmp_path / "answers.npz")
    again = Answers.load(tmp_path / "answers.npz")
    assert (again.ids == answers.ids).all()
    assert (again.lengths == answers.lengths).all()
    assert (again.begins == answers.begins).all()


def test_hidden_states_are_what_the_models_head_reads(answers: Answers) -> None:
    model = base_model(NANO)
    made = batches(model, answers, 1024, lambda done, count: None)
    seen = {
        tuple(row[of].tolist())
        for batch in made
        for row, of in zip(batch.ids, batch.of, strict=True)
    }
    for ids, begin, length in zip(answers.ids, answers.begins, answers.lengths, strict=True):
        assert tuple(ids[begin:length].tolist()) in seen
    for batch in made:
        logits = batch.features.float() @ model.embed_tokens.weight.float().T
        with torch.no_grad():
            wanted = model(batch.ids).float()
        assert (logits - wanted).abs().max() < 0.3  # bfloat16


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_a_few_steps_in_float32_lower_the_loss(
    answers: Answers, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_: contextlib.nullcontext())
    model = base_model(NANO).float()
    # One batch to train with, again and again, and one to validate with.
    made = 2 * batches(model, answers, 256, lambda done, count: None)[:1]
    losses: list[float] = []
    few = dataclasses.replace(SHORT, steps=4, warmup_steps=1)
    train_heads(kind, model, made, few, lambda done, step, loss: losses.append(loss))
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.mark.slow  # minutes on a processor that multiplies no bfloat16
@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_the_loss_falls_and_a_seed_repeats_it(answers: Answers, kind: str) -> None:
    model = base_model(NANO)
    made = batches(model, answers, 1024, lambda done, count: None)
    losses: list[float] = []
    trained = train_heads(kind, model, made, SHORT, lambda done, step, loss: losses.append(loss))
    assert trained.steps == SHORT.steps == len(losses)
    assert trained.first_loss == losses[0]
    assert np.mean(losses[-3:]) < 0.95 * trained.first_loss
    again = train_heads(kind, model, made, SHORT, lambda done, step, loss: None)
    assert again.validation_loss == pytest.approx(trained.validation_loss, rel=1e-3)
    assert len(trained.accuracy) == (4 if kind == "medusa" else 0)
    for shares in trained.accuracy:
        assert len(shares) == RANKS
        assert 0 < sum(shares) <= 1


def test_eagle_sees_its_window_and_nothing_after_it() -> None:
    eagle = EagleHead(16, heads=2, kv_heads=1, head_dim=8, inner=8, window=10)
    features, embedded_tokens = torch.randn(2, 1, 100, 16)
    begins = torch.tensor([0])
    before = eagle(features, embedded_tokens, begins)
    features[0, 20] += 1
    changed = (eagle(features, embedded_tokens, begins) != before).any(-1)[0].nonzero().flatten()
    assert changed.tolist() == list(range(20, 20 + 10))
    late = eagle(features, embedded_tokens, torch.tensor([30]))
    features[0, 20] -= 1
    assert torch.equal(late[0, 21:], eagle(features, embedded_tokens, torch.tensor([30]))[0, 21:])


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_what_is_stored_is_what_was_trained(kind: str, tmp_path: Path) -> None:
    heads = MedusaHeads(16) if kind == "medusa" else EagleHead(16)
    embedding = torch.randn(64, 16)
    write_heads(tmp_path / "heads", heads, "x", embedding, [[0.5, 0.25]])
    assert stat.S_IMODE((tmp_path / "heads" / "heads.safetensors").stat().st_mode) == 0o644
    tensors = load_file(tmp_path / "heads" / "heads.safetensors")
    assert torch.equal(tensors.pop("embedding"), embedding[:32].half())
    stored = {name: tensor.half() for name, tensor in heads.state_dict().items()}
    assert tensors.keys() == stored.keys()
    assert all(torch.equal(tensors[name], stored[name]) for name in stored)
    facts = json.loads((tmp_path / "heads" / "heads.json").read_text())
    assert (facts["kind"], facts["hidden_size"], facts["vocab_size"]) == (kind, 16, 64)


@pytest.mark.slow
def test_the_command_makes_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: list[SourceFile]
) -> None:
    monkeypatch.setattr(
        "gatewayd_engine.offline.train.heads_stage.source_files", lambda root: files
    )
    for kind in ("medusa", "eagle"):
        command = f"heads --kind {kind} --out {tmp_path} --steps 2 --answers 8"
        recipe.main(command.split())
        assert (tmp_path / f"nano-{kind}" / "heads.json").exists()
    assert len(Answers.load(tmp_path / "nano-answers.npz").ids) > 4


def test_the_shipped_heads_are_for_the_embedded_model() -> None:
    embedding = base_model(NANO).embed_tokens.weight
    for kind in ("medusa", "eagle"):
        folder = NANO.with_name(f"nano-{kind}")
        facts = json.loads((folder / "heads.json").read_text())
        assert (facts["kind"], facts["base"]) == (kind, "nano")
        tensors = load_file(folder / "heads.safetensors")
        assert torch.equal(tensors["embedding"], embedding[:32].half())
        assert (folder / "heads.safetensors").stat().st_size < 4_000_000
