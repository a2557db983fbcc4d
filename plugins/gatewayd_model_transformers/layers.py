"""Modules that take the places of those of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gatewayd_hooks.model_backends import PackedMatrix


class EngineLinear(torch.nn.Module):
    """Linear layer whose matrix the engine multiplies.

    Args:
        matrix: packed, with its bias.
        weight: the matrix before; only its shape and type are kept, for layers that ask for them.
    """

    _is_hf_initialized = True

    def __init__(self, matrix: PackedMatrix, weight: torch.Tensor) -> None:
        super().__init__()
        self._matrix = matrix
        self.out_features, self.in_features = weight.shape
        self.weight = torch.empty_like(weight, device="meta")
        self.bias = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[..., in]`` to ``[..., out]``."""
        out = self._matrix(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


class Body(torch.nn.Module):
    """The part of a model below its head, which may be told what to answer.

    So the model's own code computes logits of hidden states, with all that it does before and after
    the product.

    Args:
        inner: the part.
        output: class of its output.

    Attributes:
        given: answer to the next call, shape ``[1, num_tokens, hidden_size]``; None to compute it.
    """

    def __init__(self, inner: torch.nn.Module, output: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.inner = inner
        self._output = output
        self.given: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return what the part has, for code that looks into it."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return ``given`` as the output, or the part's own."""
        if self.given is not None:
            return self._output(last_hidden_state=self.given)
        return self.inner(*args, **kwargs)
