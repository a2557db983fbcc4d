"""Train the embedded models and heads: ``python -m gatewayd_engine.offline.train``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from gatewayd_engine.offline.train.checkpoint import write_checkpoint
from gatewayd_engine.offline.train.corpus import Corpus, build
from gatewayd_engine.offline.train.heads_stage import make_heads
from gatewayd_engine.offline.train.heads_training import KINDS
from gatewayd_engine.offline.train.model import NANO, NANO_DRAFT
from gatewayd_engine.offline.train.predictor_stage import EPOCHS, TEXTS, make_predictor
from gatewayd_engine.offline.train.stdlib_symbols import library_root, source_files
from gatewayd_engine.offline.train.token_rows import pack
from gatewayd_engine.offline.train.tokenizer import train_tokenizer
from gatewayd_engine.offline.train.training import Schedule, Trained, train

MODELS = {"nano": (NANO, 230.0), "nano-draft": (NANO_DRAFT, 70.0)}
"""Size, and training time in seconds on one H200."""
ROW_LEN = 1024
STAGES = ("corpus", "tokenizer", "train", "all", "heads", "predictor")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one stage, or ``all``, in the folder ``--out``."""
    options = _parser().parse_args(arguments)
    console = Console()
    stages = STAGES[:3] if options.stage == "all" else (options.stage,)
    if "corpus" in stages:
        make_corpus(options, console)
    if "tokenizer" in stages:
        make_tokenizer(options, console)
    if "train" in stages:
        make_models(options, console)
    if "heads" in stages:
        make_heads(options, console)
    if "predictor" in stages:
        make_predictor(options, console)


def make_corpus(options: argparse.Namespace, console: Console) -> None:
    """Write the corpus of the running Python's standard library."""
    files = source_files(library_root())
    corpus = build(files, options.seed)
    corpus.save(options.out / "corpus")
    size = sum(map(len, corpus.code)), sum(map(len, corpus.chats))
    console.print(
        f"{len(files):,} files of {size[0]:,} characters,"
        f" {len(corpus.chats):,} chats of {size[1]:,}"
    )


def make_tokenizer(options: argparse.Namespace, console: Console) -> None:
    """Train the tokenizer on the corpus."""
    tokenizer = train_tokenizer(Corpus.load(options.out / "corpus"))
    tokenizer.save(str(options.out / "tokenizer.json"))
    console.print(f"tokenizer of {tokenizer.get_vocab_size():,} entries")


def make_models(options: argparse.Namespace, console: Console) -> None:
    """Train the selected models and write them as checkpoints."""
    tokenizer = Tokenizer.from_file(str(options.out / "tokenizer.json"))
    rows = pack(Corpus.load(options.out / "corpus"), tokenizer, ROW_LEN, options.seed)
    console.print(f"{len(rows):,} rows of {ROW_LEN:,} tokens")
    for name in options.model or MODELS:
        size, seconds = MODELS[name]
        schedule = Schedule(
            seconds=None if options.steps else options.seconds or seconds,
            steps=options.steps,
            batch_rows=options.batch_rows,
            learning_rate=options.learning_rate,
            seed=options.seed,
        )
        with _bar(console) as bar:
            trained = train(rows, size, schedule, options.device, _progress_callback(bar, name))
        write_checkpoint(options.out / name, trained.model, tokenizer)
        console.print(_summary(name, trained, schedule.batch_rows * ROW_LEN))


def _summary(name: str, trained: Trained, tokens: int) -> str:
    parameters = sum(parameter.numel() for parameter in trained.model.parameters())
    return (
        f"{name}: {parameters:,} parameters, {trained.steps:,} steps of {tokens:,} tokens,"
        f" validation loss {trained.validation_loss:.3f}"
    )


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("step {task.fields[step]:,}  loss {task.fields[loss]:.3f}"),
        console=console,
    )


def _progress_callback(bar: Progress, name: str) -> Callable[[float, int, float], None]:
    task = bar.add_task(name, total=1.0, step=0, loss=float("nan"))

    def report(done: float, step: int, loss: float) -> None:
        bar.update(task, completed=done, step=step, loss=loss)

    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gatewayd_engine.offline.train", description=__doc__
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", type=Path, required=True, help="folder to work in")
    parser.add_argument(
        "--model", choices=list(MODELS), action="append", help="may be repeated; both if absent"
    )
    parser.add_argument("--kind", choices=KINDS, default="medusa", help="kind of draft heads")
    parser.add_argument(
        "--base", type=Path, help="base checkpoint of heads; default: the embedded --model"
    )
    parser.add_argument(
        "--answers", type=int, default=5700, help="texts that the base writes to train its heads on"
    )
    parser.add_argument("--texts", type=int, default=TEXTS, help="texts to train a predictor on")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs of a predictor")
    parser.add_argument(
        "--seconds", type=float, help="training time; default 230 and 70, 800 for heads"
    )
    parser.add_argument("--steps", type=int, help="training steps instead of time; deterministic")
    parser.add_argument("--batch-rows", type=int, default=64, help=f"rows of {ROW_LEN} tokens")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
    )
    return parser


if __name__ == "__main__":
    main()
