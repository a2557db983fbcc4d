"""Splitting of the stacked experts in GGUF files into single matrices. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gatewayd_engine.model.gguf.header import Tensor
from gatewayd_engine.model.gguf.names import EACH
from gatewayd_engine.model.gguf.values import Value, shown
from gatewayd_engine.model.loading.safetensors_headers import LoadError

MOST_MATRICES = 1 << 17
"""Limit of expert matrices in a model; 94 layers of 128 experts have 36,000."""


class ExpertSplitter:
    """Splitter of a model's stacked expert tensors.

    Args:
        key: metadata key of the number of experts, for error messages.
        count: experts per layer; 0 for none.
    """

    def __init__(self, key: str, count: int) -> None:
        self._key = key
        self._count = count
        self._left = MOST_MATRICES

    @classmethod
    def from_metadata(
        cls, file: str, metadata: Mapping[str, Value], architecture: str
    ) -> ExpertSplitter:
        """Create a splitter from the metadata of a file.

        Raises:
            LoadError: the metadata has an invalid number of experts.
        """
        key = f"{architecture}.expert_count"
        count = metadata.get(key, 0)
        if type(count) is not int or count < 0:
            raise LoadError(f"{file}: {key} is {shown(count)}, not how many experts a layer has")
        return cls(key, count)

    def split(
        self, file: str, name: str, full: str, tensor: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield a tensor's Hugging Face name and location, or those of each expert if stacked.

        Args:
            file: name of the file.
            name: of the tensor in the file.
            full: its Hugging Face name, which contains ``EACH`` if experts are stacked.
            tensor: its location.

        Raises:
            LoadError: its shape does not match the number of experts, or there are too many.
        """
        if EACH not in full:
            yield full, tensor
            return
        count, *shape = tensor.shape
        dimensions = 1 if full.endswith(".bias") else 2
        if count != self._count or len(shape) != dimensions:
            raise LoadError(
                f"{file}: {name} is {list(tensor.shape)}; it must have"
                f" {'two' if dimensions == 1 else 'three'} dimensions, of which the first is"
                f" {self._key}, {self._count}"
            )
        # Counted over the whole model: few bytes of header may name many matrices.
        self._left -= count
        if self._left < 0:
            raise LoadError(f"{file}: with {name} there are more than {MOST_MATRICES} experts")
        # Exact: an expert is a number of whole rows, and a row is a number of whole blocks.
        nbytes = tensor.nbytes // count
        for number in range(count):
            begin = tensor.begin + number * nbytes
            part = Tensor(tensor.type, tuple(shape), begin, nbytes)
            yield full.replace(EACH, str(number)), part
