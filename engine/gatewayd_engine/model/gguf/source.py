"""Reads the tensors of GGUF files in the order and under the names of Hugging Face."""

from __future__ import annotations

from pathlib import Path

import torch

from gatewayd_engine.model.gguf.agreement import disagreements
from gatewayd_engine.model.gguf.files import GgufFiles, read_files
from gatewayd_engine.model.gguf.header import Tensor
from gatewayd_engine.model.gguf.names import FREQUENCIES, GEMMA
from gatewayd_engine.model.gguf.types import FLOATS, SIZES
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.rotary_embedding import frequencies
from gatewayd_engine.model.spec import ModelSpec
from gatewayd_hooks.quantization import Stored

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_TOLERANCE = 1e-3
"""Of factors of frequencies, which writers compute each in its own precision."""


class GgufSource:
    """The GGUF files of a folder; see ``Source``.

    A matrix of few bits is its blocks: uint8, ``[rows, bytes of a row]``, called by its type,
    ``model.layers.0.mlp.up_proj.q4_k``. The rest is ``weight`` and ``bias`` as anywhere.

    Raises:
        LoadError: a file is broken, or its description is not that of the spec.
    """

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._files = files = read_files(folder)
        if problems := disagreements(files, spec):
            raise LoadError("; ".join(problems))
        self._is_gemma = files.architecture == GEMMA
        self._heads = _heads(files, spec)
        self._places: dict[str, tuple[Path, Tensor]] = {}
        self.stored: dict[str, Stored] = {}
        for full, place in files.tensors.items():
            name, stored = _stored(full, place[1])
            self._places[name] = place
            self.stored[name] = stored
        self._check_frequencies(spec)

    def where(self, name: str) -> str:
        """See ``Source``."""
        return self._places[name][0].name

    def read(self, name: str) -> torch.Tensor:
        """See ``Source``: rows are in the order, norms of the size, of Hugging Face's."""
        path, tensor = self._places[name]
        read = _read(path, name, tensor).view(self.stored[name].shape)
        if self._is_gemma and name.endswith("norm.weight"):
            return read.float() - 1.0  # one was added by who wrote it
        stem = name.rpartition(".")[0].rpartition(".")[2]
        heads = self._heads.get(stem)
        if heads is None:
            return read
        # Neighbours are rotated together there; here it is the halves of a head.
        return torch.unflatten(read, 0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)

    def close(self) -> None:
        """See ``Source``: nothing is kept open."""

    def _check_frequencies(self, spec: ModelSpec) -> None:
        """Compare the factors of rotations with what config.json makes of them."""
        if self._files.frequencies is None:
            return
        path, tensor = self._files.frequencies
        plain = 1.0 / spec.rope.theta ** (
            torch.arange(0, spec.rope.rotary_dim, 2) / spec.rope.rotary_dim
        )
        expected = plain / frequencies(spec.rope)
        if tensor.type == "F32" and tensor.shape == tuple(expected.shape):
            found = _read(path, FREQUENCIES, tensor)
            if torch.allclose(found, expected, rtol=_TOLERANCE, atol=0.0):
                return
        raise LoadError(
            f"{path.name}: {FREQUENCIES} is not what config.json says of the rotation of positions"
            f" (rope type {spec.rope.kind}); correct its rope_scaling"
        )


def _heads(files: GgufFiles, spec: ModelSpec) -> dict[str, int]:
    """Projections whose rows are reordered, and how many heads they are of."""
    if files.architecture != "llama":
        return {}
    return {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}


def _stored(full: str, tensor: Tensor) -> tuple[str, Stored]:
    """The name of what is read of a tensor, and its form."""
    if tensor.type in FLOATS:
        return full, Stored(tensor.type, tensor.shape)
    block, nbytes = SIZES[tensor.type]
    *rows, columns = tensor.shape
    # A bias of blocks keeps its name, lest it be taken for the matrix: nobody reads such.
    name = f"{full.removesuffix('.weight')}.{tensor.type.lower()}"
    return name, Stored("U8", (*rows, columns // block * nbytes))


def _read(path: Path, name: str, tensor: Tensor) -> torch.Tensor:
    """The bytes of a tensor as what they are, one dimension; uint8 for blocks."""
    raw = torch.empty(tensor.nbytes, dtype=torch.uint8)
    view = raw.numpy().data
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(tensor.begin)
            while view:
                count = file.readinto(view)
                if not count:
                    raise LoadError(f"{path}: {name} cannot be read: the file became shorter")
                view = view[count:]
    except OSError as error:
        raise LoadError(f"{path}: {name} cannot be read: {error.strerror}") from error
    return raw.view(_DTYPES.get(tensor.type, torch.uint8))
