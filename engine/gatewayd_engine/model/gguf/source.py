"""Tensor source of GGUF files, with Hugging Face's names and row order."""

from __future__ import annotations

from pathlib import Path

import torch

from gatewayd_engine.model.gguf.agreement import disagreements
from gatewayd_engine.model.gguf.files import GgufFiles, read_files
from gatewayd_engine.model.gguf.header import Tensor
from gatewayd_engine.model.gguf.names import FREQUENCIES, GEMMA, GEMMA3, LLAMA, SMOLLM
from gatewayd_engine.model.gguf.types import FLOATS, SIZES
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.rotary_embedding import frequencies
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.quantization import Stored

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_TOLERANCE = 1e-3
"""Relative tolerance of RoPE frequency factors: conversion tools differ in precision."""


class GgufSource:
    """Tensor source of a folder's GGUF files; see ``TensorSource``.

    A quantized matrix is returned as raw blocks, uint8 ``[rows, bytes of a row]``, with its type as
    the suffix of its name: ``model.layers.0.mlp.up_proj.q4_k``. Other tensors have the usual
    suffixes ``weight`` and ``bias``.

    Raises:
        LoadError: a file is broken, or its metadata contradicts the spec.
    """

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._files = files = read_files(folder)
        if problems := disagreements(files, spec):
            raise LoadError("; ".join(problems))
        self._is_gemma = files.architecture in (GEMMA, GEMMA3)
        self._heads = _heads(files, spec)
        self._locations: dict[str, tuple[Path, Tensor]] = {}
        self.stored: dict[str, Stored] = {}
        for full, location in files.tensors.items():
            name, stored = _stored(full, location[1])
            self._locations[name] = location
            self.stored[name] = stored
        self._check_frequencies(spec)

    def where(self, name: str) -> str:
        """See ``TensorSource``."""
        return self._locations[name][0].name

    def read(self, name: str) -> torch.Tensor:
        """See ``TensorSource``; row order and norm offsets are converted to Hugging Face's."""
        path, tensor = self._locations[name]
        read = _read(path, name, tensor).view(self.stored[name].shape)
        if self._is_gemma and name.endswith("norm.weight"):
            return read.float() - 1.0  # llama.cpp's conversion adds 1
        stem = name.rpartition(".")[0].rpartition(".")[2]
        heads = self._heads.get(stem)
        if heads is None:
            return read
        # llama.cpp rotates adjacent dimensions together, Hugging Face the halves of a head.
        return torch.unflatten(read, 0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    def close(self) -> None:
        """See ``TensorSource``; files are not kept open."""

    def _check_frequencies(self, spec: ModelSpec) -> None:
        """Compare stored RoPE frequency factors with those that follow from config.json.

        Raises:
            LoadError: they differ.
        """
        if self._files.frequencies is None:
            return
        path, tensor = self._files.frequencies
        plain = 1.0 / spec.rope.theta ** (
            torch.arange(0, spec.rope.rotary_dim, 2) / spec.rope.rotary_dim
        )
        # llama.cpp divides the plain frequencies by these factors.
        expected = plain / frequencies(spec.rope)
        if tensor.type == "F32" and tensor.shape == tuple(expected.shape):
            found = _read(path, FREQUENCIES, tensor)
            if torch.allclose(found, expected, rtol=_TOLERANCE, atol=0.0):
                return
        raise LoadError(
            f"{path.name}: {FREQUENCIES} does not match rope_scaling of config.json"
            f" (rope type {spec.rope.kind}); correct rope_scaling"
        )


def _heads(files: GgufFiles, spec: ModelSpec) -> dict[str, int]:
    """Return the projections whose rows are reordered, with their numbers of heads."""
    # For other architectures the conversion keeps Hugging Face's order of rows.
    if files.architecture not in (LLAMA, SMOLLM):
        return {}
    return {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}


def _stored(full: str, tensor: Tensor) -> tuple[str, Stored]:
    """Return the name under which a tensor is read, and its form."""
    if tensor.type in FLOATS:
        return full, Stored(tensor.type, tensor.shape)
    block, nbytes = SIZES[tensor.type]
    *rows, columns = tensor.shape
    # A quantized bias keeps ``bias`` in its name, so that it is refused, not read as the matrix.
    name = f"{full.removesuffix('.weight')}.{tensor.type.lower()}"
    return name, Stored("U8", (*rows, columns // block * nbytes))


def _read(path: Path, name: str, tensor: Tensor) -> torch.Tensor:
    """Read a tensor flat in its dtype; uint8 for quantized blocks."""
    raw = torch.empty(tensor.nbytes, dtype=torch.uint8)
    # Read straight into the tensor's memory: unbuffered, without a copy.
    view = raw.numpy().data
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(tensor.begin)
            # Linux reads at most 2 GiB at once.
            while view:
                count = file.readinto(view)
                if not count:
                    raise LoadError(f"{path}: {name} cannot be read: the file became shorter")
                view = view[count:]
    except OSError as error:
        raise LoadError(f"{path}: {name} cannot be read: {error.strerror}") from error
    return raw.view(_DTYPES.get(tensor.type, torch.uint8))
