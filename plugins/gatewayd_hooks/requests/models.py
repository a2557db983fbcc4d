"""Models in the gateway's store, and the progress of a pull, for protocols. New in 1.28."""

from __future__ import annotations

from typing import Literal, NamedTuple


class StoredModel(NamedTuple):
    """A model in the store, complete, whether it is served or not.

    Attributes:
        name: that ``pull_model`` and ``delete_model`` take, such as ``ORG/NAME:Q4_K_M``.
        size: of its files, in bytes.
        modified: Unix time of its newest file.
        digest: SHA-256 that identifies its content, in hexadecimal.
        format: ``safetensors`` or ``gguf``.
        family: such as ``llama``; empty if unknown.
        dtype: of its weights, or their quantization; empty if unknown.
        context_length: in tokens; 0 if unknown.
    """

    name: str
    size: int
    modified: int
    digest: str
    format: Literal["safetensors", "gguf"]
    family: str
    dtype: str
    context_length: int


class PullProgress(NamedTuple):
    """Progress of a pull: of the listing of files, of one file, or its end.

    Attributes:
        stage: ``done`` is the last one.
        file: that is fetched or verified; else empty.
        digest: of the file, in hexadecimal: SHA-256, or git's SHA-1 of 40 digits.
        total: size of the file, in bytes.
        completed: bytes of it that are in the store.
    """

    stage: Literal["listing", "fetching", "verifying", "done"]
    file: str = ""
    digest: str = ""
    total: int = 0
    completed: int = 0
