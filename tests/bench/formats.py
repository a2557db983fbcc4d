"""Benchmark: quality loss of the embedded model in each quantized checkpoint format.

    python -m tests.bench.formats [--tokens 6000] [--only NAME]

Each is written of it, rounded to the nearest by the naive writers of the tests, read as any
checkpoint is, and held against the model by ``gatewayd quality``: weights, perplexity, agreement
and KL of chats and of code, a row of Markdown for each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gatewayd_engine.model import embedded
from tests.engine.core.models.test_formats import written
from tests.engine.gguf_blocks import BLOCKS
from tests.engine.gguf_files import convert
from tests.plugins.quantized.writers import WRITERS

_TOKENIZER = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
_NANO = embedded.folder("nano")
_HEAD = (
    "| format | weights MiB | perplexity | agreement | KL | perplexity | agreement | KL |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)


def _gguf(kind: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        folder.mkdir()
        for name in _TOKENIZER:
            shutil.copy(_NANO / name, folder)
        architecture = json.loads((_NANO / "config.json").read_text("utf-8"))["model_type"]
        convert(_NANO, folder, architecture, [kind], "Q8_0")

    return write


FORMATS: dict[str, Callable[[Path], object]] = {
    **{
        name: lambda folder, writer=writer: written(_NANO, folder, writer)  # type: ignore[misc]
        for name, writer in WRITERS.items()
    },
    **{f"GGUF {kind}": _gguf(kind) for kind in BLOCKS},
}


def measured(folder: Path, tokens: int) -> dict[str, Any]:
    """What ``gatewayd quality`` says of a checkpoint."""
    command = ("quality", str(folder), "--against", "nano", "--tokens", str(tokens), "--json")
    done = subprocess.run(
        [sys.executable, "-m", "gatewayd", *command], stdout=subprocess.PIPE, check=True
    )
    (found,) = json.loads(done.stdout)["schemes"]
    return dict(found)


def row(name: str, found: dict[str, Any]) -> str:
    """Its row of the table."""
    cells = [name, f"{found['weight_bytes'] / (1 << 20):.1f}"]
    for kind in ("chats", "code"):
        one = found["kinds"][kind]
        cells += [
            f"{one['perplexity']:.4f}",
            f"{one['agreement']:.2%}",
            f"{one['kl_mean']:.5f}",
        ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--only", choices=FORMATS)
    args = parser.parse_args()
    print(*_HEAD, sep="\n")
    for name in [args.only] if args.only else FORMATS:
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "made"
            FORMATS[name](folder)
            found = measured(folder, args.tokens)
        print(row(name, found), flush=True)


if __name__ == "__main__":
    main()
