"""Experts of a layer, which GGUF files hold as one tensor, taken apart. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gatewayd_engine.model.gguf.header import Tensor, Unkept, Value
from gatewayd_engine.model.gguf.names import EACH
from gatewayd_engine.model.loading.safetensors_headers import LoadError

MOST_MATRICES = 1 << 17
"""Of experts that are remembered; 94 layers of 128 have 36,000."""


class Experts:
    """How many experts the layers of a model have.

    Args:
        key: where the file says it, for sentences.
        count: 0 for none.
    """

    def __init__(self, key: str, count: int) -> None:
        self._key = key
        self._count = count
        self._left = MOST_MATRICES

    @classmethod
    def of(cls, file: str, metadata: Mapping[str, Value], architecture: str) -> Experts:
        """Of a model, by what the file with that name says.

        Raises:
            LoadError: what it says is no number of experts.
        """
        key = f"{architecture}.expert_count"
        count = metadata.get(key, 0)
        if type(count) is not int or count < 0:
            shown = count.what if isinstance(count, Unkept) else repr(count)
            raise LoadError(f"{file}: {key} is {shown}, not how many experts a layer has")
        return cls(key, count)

    def apart(
        self, file: str, name: str, full: str, tensor: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """Names and places of the matrices that a tensor is of; of most it is one.

        Args:
            file: that has it.
            name: its own there.
            full: Hugging Face's, which has ``EACH`` in it if it is of all experts.
            tensor: its place.

        Raises:
            LoadError: it is of other experts than the file says, or there are too many.
        """
        if EACH not in full:
            yield full, tensor
            return
        count, *shape = tensor.shape
        if count != self._count or len(shape) != 2:
            raise LoadError(
                f"{file}: {name} is {list(tensor.shape)}; it must have three dimensions, of which"
                f" the first is {self._key}, {self._count}"
            )
        self._left -= count
        if self._left < 0:
            raise LoadError(f"{file}: with {name} there are more than {MOST_MATRICES} experts")
        nbytes = tensor.nbytes // count
        for number in range(count):
            begin = tensor.begin + number * nbytes
            part = Tensor(tensor.type, tuple(shape), begin, nbytes)
            yield full.replace(EACH, str(number)), part
