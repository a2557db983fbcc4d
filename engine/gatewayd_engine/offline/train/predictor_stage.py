"""Stage ``predictor``: record a model's attention and train a network to predict it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import torch
from rich.console import Console
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.model.decoder import Decoder
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_engine.offline.train.answers import held_out
from gatewayd_engine.offline.train.attention_traces import AttentionTrace, open_decoder, trace
from gatewayd_engine.offline.train.chats import chats
from gatewayd_engine.offline.train.checkpoint import write_tensors
from gatewayd_engine.offline.train.heads_checkpoint import PROBE
from gatewayd_engine.offline.train.predictor import CHANNELS, Trace, TrainedNetwork, train_network
from gatewayd_engine.offline.train.progress import bar_on, progress_callback
from gatewayd_engine.offline.train.stdlib_symbols import library_root, source_files, symbols
from gatewayd_engine.offline.train.tokenizer import END_OF_TEXT

LENGTHS = (512, 1024, 1536, 2048)
TEXTS = 64
"""Number of training texts, evenly divided between the lengths."""
DECODED = 256
"""Number of tokens at the end of a text whose attention is recorded."""
EPOCHS = 3
_RATE = 5e-3
_AT_ONCE = 2
_FIRST_LAYER = 1
"""First recorded layer: layer 0 of small models attends uniformly, which is not predictable."""


def make_predictor(options: argparse.Namespace, console: Console) -> None:
    """Train an attention predictor for a model and write it."""
    name = (options.model or ["nano"])[0]
    base: Path = options.base or embedded.folder(name)
    decoder = open_decoder(base)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    options.out.mkdir(parents=True, exist_ok=True)
    longest = decoder.spec.max_model_len
    lengths = [min(LENGTHS[i % len(LENGTHS)], longest) for i in range(options.texts)]
    texts = compose(tokenizer, lengths, options.seed)
    with bar_on(console) as bar:
        traces = make_traces(decoder, texts, progress_callback(bar, "attention", "texts"))
    with bar_on(console) as bar:
        report = progress_callback(bar, "predictor", "steps")
        trained = train_network(traces, options.epochs, _RATE, options.seed, report)
    folder = options.out / f"{name}-predictor"
    write_network(folder, trained, name, decoder)
    console.print(
        f"{folder}: {trained.steps:,} steps, loss {trained.first_loss:.3f} at first,"
        f" {trained.last_loss:.3f} in the end"
    )


def compose(tokenizer: Tokenizer, lengths: list[int], seed: int) -> list[list[int]]:
    """Compose texts of these lengths, alternately chats and code, without the quality texts."""
    files = source_files(library_root())
    found = symbols(files)
    kept = {symbol.qualified for symbol in held_out(found)}
    written = chats(
        [symbol for symbol in found if symbol.qualified not in kept], Random(seed), num_greetings=0
    )
    measured = {text.text[:200] for text in bundled() if text.kind == "code"}
    code = [f"{END_OF_TEXT}# {file.path.as_posix()}\n{file.text}" for file in files]
    code = [text for text in code if text[:200] not in measured]
    dice = Random(seed)
    dice.shuffle(written)
    dice.shuffle(code)
    texts = []
    for i, length in enumerate(lengths):
        ids: list[int] = []
        # Alternate only after all lengths, so that each length has both kinds.
        source = code if i // len(LENGTHS) % 2 else written
        while len(ids) < length:
            ids += tokenizer.encode(source.pop()).ids
        texts.append(ids[:length])
    return texts


def make_traces(
    decoder: Decoder, texts: list[list[int]], report: Callable[[float, int], None]
) -> list[Trace]:
    """Record the attention of the last tokens of texts, by KV head, in batches of one length."""
    shape = decoder.spec.attention
    by_length: dict[int, list[torch.Tensor]] = {}
    for i, ids in enumerate(texts):
        found: list[torch.Tensor] = []

        def look(seen: AttentionTrace, found: list[torch.Tensor] = found) -> None:
            if seen.layer < _FIRST_LAYER:
                return
            # A selection is made per KV head: the mean of the query heads that share it.
            by_head = torch.unflatten(seen.weights, 0, (shape.num_kv_heads, -1)).mean(1)
            # float16, to save memory.
            found.append(by_head.half())

        trace(decoder, ids, DECODED, look)
        by_length.setdefault(len(ids), []).append(torch.cat(found))
        report((i + 1) / len(texts), i + 1)
    return [
        Trace(torch.cat(masses[at : at + _AT_ONCE]).clone(), length - DECODED)
        for length, masses in by_length.items()
        for at in range(0, len(masses), _AT_ONCE)
    ]


def write_network(folder: Path, trained: TrainedNetwork, base: str, decoder: Decoder) -> None:
    """Write a network in float16, with data that identifies its base model; see ``read_heads``."""
    facts = {
        "kind": "predictor",
        "base": base,
        "hidden_size": decoder.spec.hidden_size,
        "vocab_size": decoder.spec.vocab_size,
        "channels": CHANNELS,
        "loss": round(trained.last_loss, 4),
    }
    state = trained.network.state_dict()
    tensors = {name: tensor.detach().half() for name, tensor in state.items()}
    tensors["embedding"] = decoder.embed(torch.arange(PROBE)).detach().half()
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "heads.safetensors", tensors)
    (folder / "heads.json").write_text(json.dumps(facts, indent=2) + "\n", "utf-8")
