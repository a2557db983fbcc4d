"""Loss of each scheme of a quantized file, here and in llama.cpp, against the same float model.

Both read the same GGUF files of the embedded model and the same windows of ``gatewayd quality``'s
texts, of which the second half is scored. ``llama-perplexity`` compares with probabilities in a
file; that file is written here, of our float model, so that both have one reference.
"""

from __future__ import annotations

import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from tokenizers import Tokenizer

from gatewayd.cli.child import run_job
from gatewayd.cli.common import load_config
from gatewayd.engines.replicas.launch import engine_config
from gatewayd_engine.model.embedded import folder
from gatewayd_engine.offline.quality.job import (
    Event,
    QualityFailed,
    QualityFigures,
    QualityJob,
    QualityScheme,
    Sample,
    SchemeMeasured,
    SchemeUnusable,
)
from gatewayd_engine.offline.quality.scheme_model import SchemeModel
from gatewayd_engine.offline.quality.texts import bundled
from gatewayd_engine.process.config import EngineConfig
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from tests.bench import llama_cpp
from tests.bench.cpu.models import NANO, ServedFile

WINDOW = 512
WINDOWS = 12
"""Of each kind of text."""
SCHEMES = ("f32", "q8_0", "q4_0", "q4_k", "q6_k")
_DEPTH = 16
"""How far below the most likely logit llama.cpp's file of probabilities reaches."""
_LEVELS = 65_535
_TRIES = 10
_PATTERNS = {
    "perplexity": r"^Mean PPL\(Q\)\s*:\s*(\S+)",
    "kl_mean": r"^Mean\s+KLD:\s*(\S+)",
    "kl_p99": r"^99\.0%\s+KLD:\s*(\S+)",
    "agreement": r"^Same top p:\s*(\S+)",
}


@dataclass(frozen=True, slots=True)
class SchemeQuality:
    """What a side loses with one file, by kind of text."""

    scheme: str
    side: str
    kinds: dict[str, QualityFigures]


def measure(cache: Path = llama_cpp.CACHE) -> list[SchemeQuality]:
    """Measure both sides on all files.

    Raises:
        RuntimeError: a scheme cannot be measured, or llama.cpp's output is not understood.
        OSError: llama.cpp is not built.
    """
    files = [ServedFile(NANO, scheme, cache) for scheme in SCHEMES]
    for file in files:
        file.make()
    samples = windows()
    theirs = _of_llama_cpp(files, samples, cache)
    ours = _of_gatewayd(files, samples)
    return [
        one for scheme in SCHEMES for one in (*ours, *theirs) if one.scheme == _title(scheme, cache)
    ]


def windows() -> list[Sample]:
    """Windows of the bundled texts; the first half of each is context."""
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    texts = bundled()
    found = []
    for kind in dict.fromkeys(text.kind for text in texts):
        joined = "".join(text.text for text in texts if text.kind == kind)
        ids = tokenizer.encode(joined, add_special_tokens=False).ids
        starts = range(0, min(len(ids) - WINDOW + 1, WINDOW * WINDOWS), WINDOW)
        found += [Sample(kind, ids[s : s + WINDOW], WINDOW // 2) for s in starts]
    return found


def markdown(found: Sequence[SchemeQuality]) -> str:
    """A table with a row for each file and side."""
    kinds = list(found[0].kinds)
    titles = [f"{kind}: {name}" for kind in kinds for name in ("perplexity", "agreement", "KL")]
    lines = [
        f"| file | read by | {' | '.join(titles)} |",
        f"| --- | --- |{' ---: |' * len(titles)}",
    ]
    for one in found:
        cells = [one.scheme, one.side]
        for kind in kinds:
            figures = one.kinds[kind]
            cells += [
                f"{figures.perplexity:.4f}",
                f"{figures.agreement or 0:.2%}",
                f"{figures.kl_mean or 0:.5f}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def parsed(output: str, tokens: int) -> QualityFigures:
    """Read the statistics that ``llama-perplexity --kl-divergence`` ends with.

    Raises:
        RuntimeError: one is missing.
    """
    values = {}
    for name, pattern in _PATTERNS.items():
        match = re.search(pattern, output, re.MULTILINE)
        if match is None:
            raise RuntimeError(f"llama-perplexity reports no {name}:\n{output[-2000:]}")
        values[name] = float(match[1])
    values["agreement"] /= 100
    return QualityFigures(tokens, **values)


def write_reference(
    file: BinaryIO, samples: Sequence[Sample], logits: Iterator[torch.Tensor]
) -> None:
    """Write a file for ``--kl-divergence-base``: windows and their probabilities.

    Args:
        file: opened for writing.
        samples: windows of the same length, of which the second half is scored.
        logits: of the scored positions of each window, float32 ``[n, vocab]``; the last position,
            which has no successor, may be left out.
    """
    length = len(samples[0].ids)
    count = length - 1 - length // 2
    for number, one in enumerate(logits):
        if number == 0:
            head = struct.pack("<Iii", length, one.shape[1], len(samples))
            ids = np.array([sample.ids for sample in samples], np.int32)
            file.write(b"_logits_" + head + ids.tobytes())
        file.write(packed(one[:count].numpy()).tobytes())


def packed(logits: np.ndarray) -> np.ndarray:
    """Log probabilities as llama.cpp packs them.

    Args:
        logits: float32 ``[n, vocab]``.

    Returns:
        uint16 ``[n, 4 + vocab rounded up to even]``: float32 step and lowest value, then steps.
    """
    rows, vocab = logits.shape
    most = logits.max(1, keepdims=True)
    least = np.maximum(logits.min(1, keepdims=True), most - _DEPTH)
    total = np.log(np.exp(logits - most, dtype=np.float64).sum(1, keepdims=True))
    step = ((most - least) / _LEVELS).astype(np.float32)
    made = np.zeros((rows, 4 + vocab + vocab % 2), np.uint16)
    made[:, :2] = step.view(np.uint16)
    made[:, 2:4] = (least - most - total).astype(np.float32).view(np.uint16)
    steps = np.rint((logits - least) / np.where(step, step, 1))
    made[:, 4 : 4 + vocab] = steps.clip(0, _LEVELS)
    return made


def _of_gatewayd(files: Sequence[ServedFile], samples: list[Sample]) -> list[SchemeQuality]:
    ways = [(file, is_packed) for file in files for is_packed in (True, False)]
    # A file of floats has nothing to pack.
    ways = [(file, is_packed) for file, is_packed in ways if file.scheme != "f32" or not is_packed]
    schemes = [
        QualityScheme(file.title, _config(file.folder, is_packed=is_packed))
        for file, is_packed in ways
    ]
    job = QualityJob(QualityScheme("float", _reference()), schemes, samples)
    found = []
    for event in run_job("gatewayd_engine.offline.quality", "measures", job, Event, []):
        if isinstance(event, QualityFailed | SchemeUnusable):
            raise RuntimeError(event.reason)
        if isinstance(event, SchemeMeasured):
            file, is_packed = ways[event.scheme]
            side = "gatewayd, packed" if is_packed else "gatewayd"
            found.append(SchemeQuality(_name(file), side, event.kinds))
    return found


def _of_llama_cpp(
    files: Sequence[ServedFile], samples: list[Sample], cache: Path
) -> list[SchemeQuality]:
    kinds = list(dict.fromkeys(sample.kind for sample in samples))
    found: dict[str, dict[str, QualityFigures]] = {file.scheme: {} for file in files}
    with tempfile.TemporaryDirectory() as parent:
        for kind in kinds:
            some = [sample for sample in samples if sample.kind == kind]
            base = Path(parent) / kind
            with base.open("wb") as opened:
                write_reference(opened, some, _reference_logits(some))
            tokens = sum(len(sample.ids) - 1 - sample.prompt for sample in some)
            for file in files:
                found[file.scheme][kind] = _perplexity(file.gguf, base, tokens, cache)
            base.unlink()
    return [SchemeQuality(_name(file), "llama.cpp", found[file.scheme]) for file in files]


def _perplexity(gguf: Path, base: Path, tokens: int, cache: Path) -> QualityFigures:
    command = [
        *(str(llama_cpp.tool("llama-perplexity", cache)), "--model", str(gguf)),
        *("--kl-divergence", "--kl-divergence-base", str(base)),
        *("--ctx-size", str(WINDOW), "--batch-size", str(WINDOW)),
        # Else the first token of each window is replaced by a token that nano does not have.
        *("--override-kv", "tokenizer.ggml.add_bos_token=bool:false"),
    ]
    # A thread of its own prints, which may be late: it does not wait for that when it ends.
    for left in reversed(range(_TRIES)):
        # A file, because a pipe would make it later.
        with tempfile.TemporaryFile("w+") as printed:
            subprocess.run(command, stdout=printed, stderr=subprocess.STDOUT, check=True)
            printed.seek(0)
            try:
                return parsed(printed.read(), tokens)
            except RuntimeError:
                if not left:
                    raise
    raise AssertionError


def _reference_logits(samples: Sequence[Sample]) -> Iterator[torch.Tensor]:
    model = SchemeModel(_reference(), PluginHost(Catalog.installed()), WINDOW)
    try:
        for sample in samples:
            yield torch.cat([*model.logits(sample.ids, sample.prompt)])
    finally:
        model.close()


def _reference() -> EngineConfig:
    return _config(folder(), is_packed=False)


def _config(model: Path, *, is_packed: bool) -> EngineConfig:
    flags = {
        "model.path": str(model),
        "model.dtype": "float32",
        "engine.device": "cpu",
        "quantizer.gguf.packed": is_packed,
    }
    return engine_config(load_config(None, flags).config)


def _name(file: ServedFile) -> str:
    return file.title.removeprefix(f"{NANO} ")


def _title(scheme: str, cache: Path) -> str:
    return _name(ServedFile(NANO, scheme, cache))
