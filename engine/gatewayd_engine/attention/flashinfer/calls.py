"""Calls of a planned wrapper, layer after layer, that prepare only once what they have in common.

A wrapper's ``run`` checks its arguments and works out some fifty for what launches, which takes
about 95 us. In a step they are the same for all layers but for four. So the first call of a plan
goes through ``run`` and what it hands on is noted; the others hand on the same but for those four.
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
    """Attends lines that have been planned."""

    def run(self, q: torch.Tensor, paged_kv_cache: KeysValues, *, out: torch.Tensor) -> object:
        """Write what queries see to ``out``.

        Args:
            q: queries, shape ``[tokens, num_heads, head_dim]``; in memory, the keys and values of
                each token follow its queries.
            paged_kv_cache: the layer's part of the pool.
            out: shape of ``q``, contiguous.
        """


class _Wrapper(Protocol):
    """One of FlashInfer's."""

    _cached_module: Any

    @property
    def run(self) -> Callable[..., object]:
        """Checks its arguments, and launches."""


class PlannedCalls:
    """How one wrapper is called.

    Args:
        wrapper: a private attribute of it, ``_cached_module``, is what launches; if it launches in
            another way than is known here, it is called by ``run`` alone.
        entry: the module's function, whose arguments have queries, keys and values in this order.
    """

    __slots__ = ("_entry", "_is_known", "wrapper")

    def __init__(self, wrapper: _Wrapper, entry: str = "paged_run") -> None:
        self.wrapper = wrapper
        self._entry = entry
        self._is_known = True

    def planned(self) -> LayerRun:
        """What attends by the wrapper's plan of now; once there is another one it must not."""
        return _Planned(self)

    def first(self, q: torch.Tensor, kv: KeysValues, out: torch.Tensor) -> _Call | None:
        """Attend, and note how; None if that cannot be told."""
        # Pages are given as a pair, and keys and values that lie in one piece one by one.
        given = (q, kv) if self._entry == "paged_run" else (q, *kv)
        if not self._is_known:
            self.wrapper.run(*given, out=out)
            return None
        module: Any = getattr(self.wrapper, "_cached_module", None)
        notes = _Notes(module, self._entry)
        self.wrapper._cached_module = notes
        try:
            self.wrapper.run(*given, out=out)
        finally:
            self.wrapper._cached_module = module
        call = notes.call_of(q, kv, out)
        if call is None:
            self._is_known = False
            _log.warning(
                "%s launches in a way that is not known: steps with prompts will take longer",
                type(self.wrapper).__name__,
            )
        return call


class _Planned:
    """The layers of one step."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: PlannedCalls) -> None:
        self._calls = calls
        self._call: _Call | None = None

    def run(self, q: torch.Tensor, paged_kv_cache: KeysValues, *, out: torch.Tensor) -> None:
        """See ``LayerRun``."""
        call = self._call
        if call is None:
            self._call = self._calls.first(q, paged_kv_cache, out)
            return
        # Written over, as nobody keeps them: what launches is given each by itself.
        args, at = call.args, call.at
        args[at : at + 3] = (q, *paged_kv_cache)
        args[call.out_at] = out
        call.launch(*args)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of what launches.

    Attributes:
        launch: what was called.
        args: with what.
        at: where the queries are; keys and values follow.
        out_at: where ``out`` is.
    """

    launch: Callable[..., object]
    args: list[object]
    at: int
    out_at: int


class _Notes:
    """Stands for a wrapper's module and takes down what is launched."""

    def __init__(self, module: Any, entry: str) -> None:  # noqa: ANN401 - made by tvm-ffi
        self._module = module
        self._entry = entry
        self._calls: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> object:
        """The module's, but for what launches."""
        return self._launch if name == self._entry else getattr(self._module, name)

    def _launch(self, *args: object, **named: object) -> object:
        """Take it down and hand it on."""
        self._calls.append(() if named else args)
        return getattr(self._module, self._entry)(*args, **named)

    def call_of(self, q: torch.Tensor, kv: KeysValues, out: torch.Tensor) -> _Call | None:
        """The one call with just these tensors, if it is one."""
        if len(self._calls) != 1:
            return None
        args = list(self._calls[0])
        places = [[i for i, arg in enumerate(args) if arg is tensor] for tensor in (q, *kv, out)]
        match places:
            case [[at], [k_at], [v_at], [out_at]] if (k_at, v_at) == (at + 1, at + 2):
                return _Call(getattr(self._module, self._entry), args, at, out_at)
        return None
