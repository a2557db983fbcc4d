"""Loading memory: peak of a process, as the kernel counts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gatewayd_engine.model.loading.layout import layout
from gatewayd_engine.model.spec import read_spec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
MIB = 1 << 20
LOADING = """
import sys, threading
from pathlib import Path
import torch
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.loader import read
from gatewayd_engine.model.spec import read_spec
from gatewayd_quant_int8.strategy import Int8Quantizer

def private():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

folder, quantize = Path(sys.argv[1]), Int8Quantizer().quantize if sys.argv[2] == "int8" else None
torch.set_num_threads(1)
Int8Quantizer().quantize(None, torch.ones(64, 64))
before, seen, is_over = private(), [0], threading.Event()

def look():
    while not is_over.wait(0.001):
        seen.append(private() - before)

looking = threading.Thread(target=look)
looking.start()
read(Checkpoint.open(folder, read_spec(folder)), torch.float32, "cpu", lambda part: None, None,
     quantize)
is_over.set()
looking.join()
print(len(seen), max(seen))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of 80 MiB."""
    import torch
    from safetensors.torch import save_file

    made = tmp_path_factory.mktemp("large")
    (made / "config.json").write_text(json.dumps(CONFIG))
    shapes = layout(read_spec(made))
    save_file(
        {name: torch.rand(shape) for name, shape in shapes.items()}, made / "model.safetensors"
    )
    return made


def peak(folder: Path, how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", LOADING, str(folder), how],
        capture_output=True,
        text=True,
        check=True,
    )
    looks, most = map(int, done.stdout.split())
    assert looks > 20
    return most


def test_floats_that_are_quantized_are_never_together_in_memory(folder: Path) -> None:
    """Bytes take a quarter of the file; beside them are a few matrices, each 3 or 6 MiB."""
    # Pages that a busy machine has not taken back yet are counted, too: once of three is enough.
    most = 0.6 * (folder / "model.safetensors").stat().st_size
    assert any(peak(folder, "int8") < most for _ in range(3))
