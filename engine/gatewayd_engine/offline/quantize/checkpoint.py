"""Assembly of a quantized checkpoint from its layer files and the source model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from gatewayd_engine.model.config.text_part import text_part
from gatewayd_engine.model.json_fields import JsonFields
from gatewayd_engine.model.loading.checkpoint import Checkpoint
from gatewayd_engine.model.loading.shards import INDEX, SINGLE
from gatewayd_engine.model.spec import read_spec
from gatewayd_engine.offline.quantize import atomic_files
from gatewayd_engine.offline.quantize.job import REPORT
from gatewayd_engine.offline.quantize.progress import QuantizeProgress
from gatewayd_engine.offline.quantize.quantizer import CheckpointQuantizer

_SHARD_BYTES = 2 << 30
_CONFIG = "config.json"
_COPIED = (".json", ".jinja", ".model", ".txt", ".md")
"""Suffixes of copied files: tokenizer, generation settings, model card."""
_LICENCES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")


def assemble(
    source: Checkpoint,
    writer: CheckpointQuantizer,
    work: QuantizeProgress,
    report: Mapping[str, Any],
) -> int:
    """Write the whole checkpoint into the work folder, and verify that it can be opened.

    Args:
        source: the source model.
        writer: the quantizer that packed its layers.
        work: progress with all layers done.
        report: report to be stored with the weights.

    Returns:
        Bytes of the weights.

    Raises:
        WriteError: a file cannot be written, such as on a full disk.
        LoadError: the written checkpoint cannot be read.
    """
    folder = work.checkpoint
    atomic_files.make(folder)
    total = _write_shards(folder, _tensors(source, work))
    described = JsonFields.of_file(source.folder / _CONFIG)
    # Of a multimodal model the language model is written, under its own names.
    values = (text_part(described) or described).values
    added = {"quantization_config": writer.announced} if writer.announced else {}
    atomic_files.write_json(folder / _CONFIG, {**values, **added})
    for path in sorted(source.folder.iterdir()):
        if path.is_file() and _is_copied(path):
            atomic_files.copy(path, folder)
    atomic_files.write_json(folder / REPORT, report)
    Checkpoint.open(folder, read_spec(folder), writer.scheme).close()
    return total


def layer_names(source: Checkpoint, index: int) -> list[str]:
    """Return the names of a layer's tensors in the source model."""
    return [name for name in source.shapes if name.startswith(f"model.layers.{index}.")]


def _tensors(source: Checkpoint, work: QuantizeProgress) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors to be written, in a deterministic order."""
    for name in source.shapes:
        if ".layers." not in name:
            yield name, source.tensor(name)
    # KV cache scales stay valid: quantized weights give nearly the same keys and values.
    for name in source.scale_names:
        yield name, source.tensor(name)
    for index in range(source.spec.num_layers):
        with safe_open(work.layer_file(index), "pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)


def _write_shards(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Write shards of limited size, and their index if there are several; return total bytes."""
    shard: dict[str, torch.Tensor] = {}
    shard_names: list[list[str]] = []
    size = total = 0

    def write() -> None:
        shard_names.append(list(shard))
        # Final names contain the number of shards, which is known at the end.
        atomic_files.write_tensors(folder / f"shard-{len(shard_names):05}", shard)
        shard.clear()

    for name, tensor in tensors:
        if shard and size + tensor.nbytes > _SHARD_BYTES:
            write()
            size = 0
        shard[name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    write()
    weight_map: dict[str, str] = {}
    count = len(shard_names)
    for number, names in enumerate(shard_names, 1):
        file = SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
        atomic_files.move(folder / f"shard-{number:05}", folder / file)
        weight_map |= dict.fromkeys(names, file)
    if count > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        atomic_files.write_json(folder / INDEX, index)
    return total


def _is_copied(path: Path) -> bool:
    # These are written here, and indices of shards of the source do not apply.
    if path.name in (_CONFIG, REPORT) or path.name.endswith(".index.json"):
        return False
    return path.suffix in _COPIED or path.name.startswith(_LICENCES)
