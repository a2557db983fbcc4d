"""Stage ``heads``: generate a model's answers, then train draft heads on them."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.train.answers import LONGEST, Answers, prompts, write_answers
from gatewayd_engine.offline.train.heads_checkpoint import write_heads
from gatewayd_engine.offline.train.heads_training import base_model, batches, train_heads
from gatewayd_engine.offline.train.progress import bar_on, progress_callback
from gatewayd_engine.offline.train.stdlib_symbols import library_root, source_files
from gatewayd_engine.offline.train.training import Schedule
from gatewayd_engine.runner.draft_model import row_model
from gatewayd_engine.speculation.draft_models import load_draft_model

RATES = {"medusa": 2e-3, "eagle": 1.5e-3}
SECONDS = 800.0
"""Training time on one core."""
CODE_SHARE = 8
"""One text in this many is source code, the others are chats."""
_WIDTH = 64
_BATCH_TOKENS = 1024


def make_heads(options: argparse.Namespace, console: Console) -> None:
    """Train draft heads of a kind for a model and write them."""
    name = (options.model or ["nano"])[0]
    base: Path = options.base or embedded.folder(name)
    options.out.mkdir(parents=True, exist_ok=True)
    answers = _answers(options, base, name, console)
    model = base_model(base)
    with bar_on(console) as bar:
        made = batches(
            model, answers, _BATCH_TOKENS, progress_callback(bar, "hidden states", "rows")
        )
    schedule = Schedule(
        seconds=None if options.steps else options.seconds or SECONDS,
        steps=options.steps,
        learning_rate=RATES[options.kind],
        warmup_steps=50,
        weight_decay=0.01,
        seed=options.seed,
    )
    with bar_on(console) as bar:
        trained = train_heads(
            options.kind, model, made, schedule, progress_callback(bar, options.kind, "steps")
        )
    folder = options.out / f"{name}-{options.kind}"
    embedding = model.embed_tokens.weight
    write_heads(folder, trained.heads, name, embedding, trained.accuracy)
    console.print(
        f"{folder}: {trained.steps:,} steps, loss {trained.first_loss:.2f} at first,"
        f" {trained.validation_loss:.2f} on held-out rows"
    )


def _answers(options: argparse.Namespace, base: Path, name: str, console: Console) -> Answers:
    """Load or generate the model's answers, which are shared by both kinds of heads."""
    path: Path = options.out / f"{name}-answers.npz"
    if path.exists():
        return Answers.load(path)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    num_code = options.answers // CODE_SHARE
    begun = prompts(
        source_files(library_root()), tokenizer, options.seed, options.answers - num_code, num_code
    )
    model = load_draft_model(str(base), _WIDTH, LONGEST, torch.bfloat16, "cpu", row_model)
    with bar_on(console) as bar:
        answers = write_answers(
            model, begun, _WIDTH, options.seed, progress_callback(bar, "answers", "tokens")
        )
    answers.save(path)
    return answers
