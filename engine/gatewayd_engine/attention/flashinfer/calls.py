"""Cheap repeated calls of a planned FlashInfer wrapper, layer by layer.

A wrapper's ``run`` validates its arguments and computes some fifty for the launch function, which
takes about 95 us. In a step all but four of them are the same for all layers. So the first call of
a plan goes through ``run``, and the arguments of its launch are recorded; later calls launch
directly, with those four replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

_log = logging.getLogger(__name__)

KeysValues = tuple[torch.Tensor, ...]
"""Keys and values of a layer, each ``[pages, page_size, kv_heads, head_dim]``."""


class LayerRun(Protocol):
    """Attention of sequences that have been planned."""

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: KeysValues,
        *,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> object:
        """Attend and write the output to ``out``.

        Args:
            q: queries, shape ``[tokens, num_heads, head_dim]``; in memory, the keys and values of
                each token follow its queries.
            paged_kv_cache: keys and values of the layer in the pool.
            out: shape of ``q``, contiguous.
            lse: receives the log2-sum-exp2 of the scores, float32, shape ``[tokens, num_heads]``,
                the same tensor in all calls of a plan.
            return_lse: whether ``lse`` is given.
        """


class _Wrapper(Protocol):
    """A FlashInfer wrapper."""

    _cached_module: Any

    @property
    def run(self) -> Callable[..., object]:
        """Validates its arguments, and launches."""


class PlannedCalls:
    """Calls of one wrapper.

    Args:
        wrapper: FlashInfer wrapper, which launches through its private ``_cached_module``; if its
            launches are not as expected, it is always called by ``run``.
        entry: function of that module, whose arguments have queries, keys and values in this order.
    """

    __slots__ = ("_entry", "_is_known", "wrapper")

    def __init__(self, wrapper: _Wrapper, entry: str = "paged_run") -> None:
        self.wrapper = wrapper
        self._entry = entry
        self._is_known = True

    def planned(self) -> LayerRun:
        """Return calls for the wrapper's current plan, valid until the next plan."""
        return _Planned(self)

    def run_first(
        self, q: torch.Tensor, kv: KeysValues, out: torch.Tensor, lse: torch.Tensor | None
    ) -> _Call | None:
        """Attend through ``run`` and record the launch; None if that is not possible."""
        # Paged keys and values are passed as a tuple, ragged ones as two arguments.
        given = (q, kv) if self._entry == "paged_run" else (q, *kv)
        named: dict[str, object] = {"out": out}
        if lse is not None:
            named |= {"lse": lse, "return_lse": True}
        if not self._is_known:
            self.wrapper.run(*given, **named)
            return None
        module: Any = getattr(self.wrapper, "_cached_module", None)
        recorder = _LaunchRecorder(module, self._entry)
        self.wrapper._cached_module = recorder
        try:
            self.wrapper.run(*given, **named)
        finally:
            self.wrapper._cached_module = module
        call = recorder.call_of(q, kv, out)
        if call is None:
            self._is_known = False
            _log.warning(
                "%s launched unexpected kernels; steps with prefill are slower",
                type(self.wrapper).__name__,
            )
        return call


class _Planned:
    """Calls of the layers of one step."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: PlannedCalls) -> None:
        self._calls = calls
        self._call: _Call | None = None

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: KeysValues,
        *,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        return_lse: bool = False,
    ) -> None:
        """See ``LayerRun``."""
        call = self._call
        if call is None:
            self._call = self._calls.run_first(q, paged_kv_cache, out, lse)
            return
        # The list can be modified in place, as arguments are passed individually.
        args, at = call.args, call.at
        args[at : at + 3] = (q, *paged_kv_cache)
        args[call.out_at] = out
        call.launch(*args)


@dataclass(frozen=True, slots=True)
class _Call:
    """A recorded launch.

    Attributes:
        launch: launch function.
        args: its arguments.
        at: index of the queries; keys and values follow.
        out_at: index of ``out``.
    """

    launch: Callable[..., object]
    args: list[object]
    at: int
    out_at: int


class _LaunchRecorder:
    """Proxy of a wrapper's module that records launches."""

    def __init__(self, module: Any, entry: str) -> None:  # noqa: ANN401 - made by tvm-ffi
        self._module = module
        self._entry = entry
        self._calls: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> object:
        """Return the module's attribute, or the recording launch function."""
        return self._launch if name == self._entry else getattr(self._module, name)

    def _launch(self, *args: object, **named: object) -> object:
        """Record the arguments and launch."""
        # Named arguments have no index at which they could be replaced: ``call_of`` then finds
        # none.
        self._calls.append(() if named else args)
        return getattr(self._module, self._entry)(*args, **named)

    def call_of(self, q: torch.Tensor, kv: KeysValues, out: torch.Tensor) -> _Call | None:
        """Return the recorded launch, if it is the only one and has each tensor exactly once."""
        if len(self._calls) != 1:
            return None
        args = list(self._calls[0])
        places = [[i for i, arg in enumerate(args) if arg is tensor] for tensor in (q, *kv, out)]
        match places:
            case [[at], [k_at], [v_at], [out_at]] if (k_at, v_at) == (at + 1, at + 2):
                return _Call(getattr(self._module, self._entry), args, at, out_at)
        return None
