"""Small model for tests of engine behaviour, whatever the model says."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from gatewayd_engine.model import embedded

NUM_LAYERS = 2


@functools.cache
def small() -> Path:
    """Folder of the embedded model's first layers, which take a third of its time."""
    from safetensors.torch import load_file, save_file

    whole, folder = embedded.folder("nano"), Path(tempfile.mkdtemp(prefix="gatewayd-small-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config: dict[str, Any] = json.loads((whole / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": NUM_LAYERS}))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(whole / name, folder)
    weights = {}
    for shard in whole.glob("*.safetensors"):
        for name, tensor in load_file(shard).items():
            parts = name.split(".")
            if parts[1] != "layers" or int(parts[2]) < NUM_LAYERS:
                weights[name] = tensor
    save_file(weights, folder / "model.safetensors")
    return folder
