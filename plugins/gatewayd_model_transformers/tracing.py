"""Trace of a model on the meta device: what each layer asks of attention, without weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

TRACING = "gatewayd_trace"
"""Name of the attention function and of the mask function of traces."""
_NUM_TOKENS = 5
_MOST_CALLS = 1 << 17
_IGNORED = {
    *("dropout", "is_causal", "position_ids", "use_cache", "cache_position", "layer_idx"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
    "logits_to_keep",
}
"""Arguments that change no result of a causal decoder in inference."""


class Unservable(ValueError):
    """The model cannot be served; the message says why, without its name."""


@dataclass(frozen=True, slots=True)
class Given:
    """Place of an input of the model among the arguments of its body."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """One call of the attention function.

    Attributes:
        heads, kv_heads: of queries, and of keys and values.
        key_dim, value_dim: sizes of their heads.
        scale: factor on the scores.
        softcap: of the scores; None for none.
        window: of the latest positions, with the token's own; 0 for all.
        sinks: name of the parameter with the scores of sinks; None for none.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    window: int
    sinks: str | None


@dataclass(slots=True)
class ModelTrace:
    """Facts of a forward pass.

    Attributes:
        calls: of the attention function, in order.
        body: name of the module that makes hidden states.
        arguments: of the body's call; ids, positions and mask as the objects that were passed.
        output: class of its output.
        hidden_size, vocab_size: last dimensions of hidden states and logits.
        called: names of the modules that were called.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    body: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    hidden_size: int = 0
    vocab_size: int = 0
    called: set[str] = field(default_factory=set)


class Tracer:
    """Traces one model.

    Args:
        model: on the meta device, with the attention function ``TRACING``.
        max_model_len: positions up to which masks are examined.
    """

    def __init__(self, model: Any, max_model_len: int) -> None:  # noqa: ANN401
        self._model = model
        self._max_model_len = max_model_len
        self._names = {module: name for name, module in model.named_modules()}
        self._open: list[torch.nn.Module] = []
        self._num_calls = 0
        self.trace = ModelTrace()

    def run(self) -> ModelTrace:
        """Run the model once.

        Raises:
            Unservable: it asks for something that the engine's attention cannot do.
        """
        if "position_ids" not in inspect.signature(self._model.forward).parameters:
            raise Unservable("it takes no position ids")
        AttentionInterface.register(TRACING, self._attention)
        AttentionMaskInterface.register(TRACING, self._mask)
        hooks = [
            hook
            for module in self._model.modules()
            for hook in (
                module.register_forward_pre_hook(self._enter, with_kwargs=True),
                module.register_forward_hook(self._leave, with_kwargs=True),
            )
        ]
        given = {
            "input_ids": torch.zeros(1, _NUM_TOKENS, dtype=torch.int64, device="meta"),
            "position_ids": torch.arange(_NUM_TOKENS, device="meta").unsqueeze(0),
            # Without it, position ids are searched for several sequences in one.
            "attention_mask": torch.ones(1, _NUM_TOKENS, dtype=torch.int64, device="meta"),
        }
        try:
            with torch.inference_mode():
                logits = self._model(**given, use_cache=False).logits
        except Unservable:
            raise
        except Exception as error:
            raise Unservable(
                f"its layers cannot be traced without weights: {str(error).partition(chr(10))[0]}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        self.trace.vocab_size = logits.shape[-1]
        self._check()
        names = {id(value): key for key, value in given.items()}
        self.trace.arguments = {
            key: Given(names[id(value)]) if id(value) in names else value
            for key, value in self.trace.arguments.items()
        }
        return self.trace

    def _check(self) -> None:
        trace = self.trace
        if not trace.calls:
            raise Unservable("its attention cannot be replaced")
        convolutions = sorted(
            name
            for name in trace.called
            if isinstance(self._model.get_submodule(name), torch.nn.Conv1d)
        )
        if convolutions:
            raise Unservable(f"{convolutions[0]} is a convolution over tokens")
        layers = getattr(self._model.config.get_text_config(), "num_hidden_layers", 0)
        if len(trace.calls) < layers:
            raise Unservable(f"only {len(trace.calls)} of its {layers} layers have attention")

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        self._num_calls += 1
        # Some models repeat their layers as often as config.json says.
        if self._num_calls > _MOST_CALLS:
            raise Unservable(f"one token takes more than {_MOST_CALLS} calls of its modules")
        self.trace.called.add(self._names[module])
        self._open.append(module)
        if len(self._open) == 2:
            self._before = len(self.trace.calls)
            self._given = args, kwargs

    def _leave(
        self,
        module: torch.nn.Module,
        args: Any,  # noqa: ANN401
        kwargs: Any,  # noqa: ANN401
        output: Any,  # noqa: ANN401
    ) -> None:
        self._open.pop()
        if len(self._open) == 1 and len(self.trace.calls) > self._before:
            if self.trace.body:
                raise Unservable("several of its parts have attention")
            args, kwargs = self._given
            bind = inspect.signature(module.forward).bind
            bound = bind(*args, **kwargs)
            arguments = dict(bound.arguments)
            for name, parameter in bound.signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    arguments.update(arguments.pop(name, {}))
            self.trace.body = self._names[module]
            self.trace.arguments = arguments
            self.trace.output = type(output)
            self.trace.hidden_size = output[0].shape[-1]

    def _mask(self, *, mask_function: Callable[..., Any], q_length: int, **_: Any) -> torch.Tensor:  # noqa: ANN401
        mask = torch.empty(1, 1, q_length, q_length, dtype=torch.bool, device="meta")
        # Models make masks of all kinds that their layers might need: judged where one is used.
        window = partial(window_of, mask_function, self._max_model_len)
        # All layers of a kind share the mask.
        mask.window = cache(window)  # type: ignore[attr-defined]
        return mask

    def _attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        sliding_window: int | None = None,
        **others: Any,  # noqa: ANN401
    ) -> tuple[torch.Tensor, None]:
        name = self._names[module]
        if key.shape[2] != query.shape[2] or query.shape[2] != _NUM_TOKENS:
            raise Unservable(f"{name} attends to other tokens than those of the text")
        unknown = sorted(
            key for key, value in others.items() if value is not None and key not in _IGNORED
        )
        if unknown:
            raise Unservable(f"{name} passes {', '.join(unknown)} to its attention")
        is_causal = others.get("is_causal")
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        if attention_mask is None and not is_causal:
            raise Unservable(f"the attention of {name} is not causal")
        if attention_mask is not None and not hasattr(attention_mask, "window"):
            raise Unservable(f"{name} changes its attention mask")
        window = 0 if attention_mask is None else attention_mask.window()
        heads, kv_heads = query.shape[1], key.shape[1]
        if heads % kv_heads or value.shape[1] != kv_heads:
            raise Unservable(f"{name} has {heads} query heads and {kv_heads} KV heads")
        if isinstance(scaling, torch.Tensor):
            raise Unservable(f"the scale of {name} is a tensor")
        self.trace.calls.append(
            AttentionCall(
                heads,
                kv_heads,
                query.shape[3],
                value.shape[3],
                query.shape[3] ** -0.5 if scaling is None else float(scaling),
                softcap,
                window,
                self._sinks(name, s_aux),
            )
        )
        return query.new_empty(1, _NUM_TOKENS, heads, value.shape[3]), None

    def _sinks(self, name: str, scores: torch.Tensor | None) -> str | None:
        if scores is None:
            return None
        module = self._model.get_submodule(name)
        found = next((key for key, each in module.named_parameters() if each is scores), None)
        if found is None:
            raise Unservable(f"the attention sinks of {name} are computed")
        return f"{name}.{found}"


def window_of(mask_function: Callable[..., Any], length: int) -> int:
    """Return the sliding window of a mask function, 0 for causal attention to all positions.

    Raises:
        Unservable: it is no causal mask with or without a sliding window.
    """
    zero, at = torch.tensor(0), torch.arange(length)
    try:
        sums = _visible(mask_function, zero, length - 1, at)
        size = int(sums.sum())
        window = 0 if size == length else size
        # Positions around multiples of the size show masks of blocks.
        for query in sorted({0, 1, size - 1, size, size + 1, length // 2, length - 1}):
            if not 0 <= query < length:
                continue
            expected = at <= query
            if window:
                expected &= at > query - window
            if not torch.equal(_visible(mask_function, zero, query, at), expected):
                raise Unservable("its attention mask is neither causal nor a sliding window")
    except Unservable:
        raise
    except Exception as error:
        raise Unservable(f"its attention mask cannot be evaluated: {error}") from error
    return window


def _visible(
    mask_function: Callable[..., Any], zero: torch.Tensor, query: int, at: torch.Tensor
) -> torch.Tensor:
    found: torch.Tensor = mask_function(zero, zero, torch.tensor(query), at)
    return found.expand_as(at).bool()
