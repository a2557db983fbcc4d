"""Digests of a quantization's inputs, so that a run is only resumed with the same ones."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence

import torch

from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer
from gatewayd_hooks.version import SPEC_VERSION

_AT_ONCE = 16 << 20
"""Bytes per read."""
_PATIENCE_S = 1.0
"""Seconds between progress reports; small models are read sooner."""


def origin_of(
    source: Checkpoint,
    writer: CheckpointQuantizer,
    samples: Sequence[torch.Tensor],
    skip: Sequence[str],
    owner: str,
    advance: Callable[[float], None],
) -> dict[str, str]:
    """Compute digests of everything that the checkpoint depends on, by name.

    Args:
        source: the model.
        writer: the quantizer.
        samples: token ids of the calibration texts.
        skip: globs of matrices that are not quantized.
        owner: distribution of the quantizer, with its version.
        advance: called now and then with the fraction of the model that was read.
    """
    texts = [ids.tolist() for ids in samples]
    settings = {"quantizer": writer.name, **writer.settings}
    return {
        "model": _model(source, advance),
        "text": _digest(texts),
        "setting": _digest(settings),
        "--skip": _digest(list(skip)),
        "version": f"{SPEC_VERSION} {torch.__version__} {owner}",
    }


def _model(source: Checkpoint, advance: Callable[[float], None]) -> str:
    """Digest all files of a model: modification times are unreliable, and hashing is fast."""
    model = hashlib.blake2b(digest_size=16)
    model.update((source.folder / "config.json").read_bytes())
    paths = [source.folder / name for name in source.files]
    total, read = sum(path.stat().st_size for path in paths), 0
    reported = time.monotonic()
    for path in paths:
        one = hashlib.blake2b()
        with path.open("rb", buffering=0) as file:
            while some := file.read(_AT_ONCE):
                one.update(some)
                read += len(some)
                if time.monotonic() - reported >= _PATIENCE_S:
                    reported = time.monotonic()
                    advance(read / max(read, total))
        # Name and digest of each file, so that contents cannot move from one file to another.
        model.update(path.name.encode() + b"\0" + one.digest())
    return model.hexdigest()


def _digest(values: object) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
