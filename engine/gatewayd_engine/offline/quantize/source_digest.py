"""What a checkpoint is made of, in digests: nobody goes on with something else."""

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
"""Bytes that are read at once."""
_PATIENCE_S = 1.0
"""Between two words about how far it is; small models are read sooner."""


def origin_of(
    source: Checkpoint,
    writer: CheckpointQuantizer,
    samples: Sequence[torch.Tensor],
    skip: Sequence[str],
    owner: str,
    advance: Callable[[float], None],
) -> dict[str, str]:
    """Digests of all that the checkpoint depends on, by what they are of.

    Args:
        source: the model.
        writer: the quantizer.
        samples: what it looks at.
        skip: globs of matrices that stay.
        owner: the distribution that the quantizer is of, with its version.
        advance: told the part of the model that was read, now and then.
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
    """Of all of its files, for a time of change says nothing: seconds, where a layer is minutes."""
    model = hashlib.blake2b(digest_size=16)
    model.update((source.folder / "config.json").read_bytes())
    paths = [source.folder / name for name in source.files]
    total, read = sum(path.stat().st_size for path in paths), 0
    told = time.monotonic()
    for path in paths:
        one = hashlib.blake2b()
        with path.open("rb", buffering=0) as file:
            while some := file.read(_AT_ONCE):
                one.update(some)
                read += len(some)
                if time.monotonic() - told >= _PATIENCE_S:
                    told = time.monotonic()
                    advance(read / max(read, total))
        model.update(path.name.encode() + b"\0" + one.digest())
    return model.hexdigest()


def _digest(values: object) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
