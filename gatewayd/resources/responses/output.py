"""What a response says, item by item, and the events that tell of it.

Parts of an answer come in; each opens, continues or closes an item. The same items are the body of
a response that is not streamed. Where an item was cut into deltas is kept too, so that it can be
told of again by the same events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gatewayd.store.ids import new_id
from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall

Event = dict[str, Any]
Cuts = list[tuple[int, int]]
"""Of the deltas of an item: how many characters, and how many log-probabilities."""


class Output:
    """Collects one answer.

    Attributes:
        items: so far; the last one may be open, and has its text once it is closed.
        cuts: of each item.
        is_broken: whether the last item was left open.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.cuts: list[Cuts] = []
        self.is_broken = False
        self._open: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._blank = ""
        """Space that begins no message unless something follows."""

    def take(self, parts: Sequence[Part], logprobs: Sequence[dict[str, Any]]) -> Iterator[Event]:
        """Go on; events without their numbers.

        Args:
            parts: what has come.
            logprobs: of the tokens of their text.
        """
        texts = sum(isinstance(part, Text) for part in parts)
        for part in parts:
            match part:
                case Text(text):
                    texts -= 1
                    yield from self._text(text, list(logprobs) if not texts else [])
                case Reasoning(text):
                    yield from self._reasoning(text)
                case ToolCall(_, name):
                    yield from self._call(name)
                case Arguments(_, text) if self._open is not None:
                    self._add(text)
                    yield self._event("function_call_arguments.delta", delta=text)

    def end(self, status: str) -> Iterator[Event]:
        """Close what is open; an answer without any item is an empty message.

        Args:
            status: of the last item, ``completed`` or ``incomplete``.
        """
        if not self.items:
            blank = self._blank
            yield from self._open_text()
            self._pieces.append(blank)
        yield from self._close(status)

    def break_off(self) -> None:
        """It failed: what is open stays as it is."""
        if self._open is not None:
            self._settle("incomplete")
            self.is_broken = True

    def again(self, item: dict[str, Any], cuts: Cuts | None, *, is_broken: bool) -> Iterator[Event]:
        """Tell of an item that is whole.

        Args:
            item: as it was kept.
            cuts: of it; None for one delta.
            is_broken: whether it was left open.
        """
        is_text, is_call = item["type"] == "message", item["type"] == "function_call"
        part = None if is_call else item["content"][0]
        text = item["arguments"] if part is None else part["text"]
        logprobs = part["logprobs"] if part is not None and is_text else []
        if part is None:
            yield from self._begin({**item, "arguments": ""}, None)
        else:
            empty = {**part, "text": "", **({"logprobs": []} if is_text else {})}
            yield from self._begin({**item}, empty)
        at = scored = 0
        for length, count in (
            cuts if cuts is not None else [(len(text), len(logprobs))][: len(text)]
        ):
            delta = text[at : at + length]
            at, first, scored = at + length, scored, scored + count
            if is_call:
                yield from self.take([Arguments(0, delta)], [])
            elif is_text:
                yield from self._text(delta, logprobs[first:scored])
            else:
                yield from self._reasoning(delta)
        self._pieces.append(text[at:])
        if is_broken:
            self.break_off()
        else:
            yield from self._close(item["status"])

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "message":
            text = self._blank + text
            if not text.strip():
                self._blank = text
                return
            yield from self._open_text()
        self._add(text, len(logprobs))
        self._part()["logprobs"] += logprobs
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _open_text(self) -> Iterator[Event]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._begin({"id": new_id("msg_"), "type": "message", "role": "assistant"}, part)

    def _reasoning(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin({"id": new_id("rs_"), "type": "reasoning", "summary": []}, part)
        self._add(text)
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _call(self, name: str) -> Iterator[Event]:
        call = {
            "id": new_id("fc_"),
            "type": "function_call",
            "call_id": new_id("call_"),
            "name": name,
            "arguments": "",
        }
        yield from self._begin(call, None)

    def _add(self, text: str, scored: int = 0) -> None:
        """A delta of what is open."""
        self._pieces.append(text)
        self.cuts[-1].append((len(text), scored))

    def _begin(self, fields: dict[str, Any], part: dict[str, Any] | None) -> Iterator[Event]:
        yield from self._close("completed")
        self._blank = ""
        item = self._open = {**fields, "status": "in_progress"}
        if part is not None:
            item["content"] = []
        self.items.append(item)
        self.cuts.append([])
        yield self._item_event("output_item.added", item)
        if part is not None:
            item["content"] = [part]
            yield self._event("content_part.added", content_index=0, part=dict(part))

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        self._settle(status)
        if item["type"] == "function_call":
            named = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("function_call_arguments.done", **named)
        else:
            part, kind = self._part(), "reasoning_text"
            told: dict[str, Any] = {"text": part["text"]}
            if item["type"] == "message":
                kind, told["logprobs"] = "output_text", part["logprobs"]
            yield self._event(f"{kind}.done", content_index=0, **told)
            yield self._event("content_part.done", content_index=0, part=part)
        yield self._item_event("output_item.done", item)
        self._open = None

    def _settle(self, status: str) -> None:
        """Text is put together once: added to piece by piece, a long one is copied each time."""
        item, text = self._open, "".join(self._pieces)
        self._pieces.clear()
        if item is None:
            raise RuntimeError("no item is open")
        if item["type"] == "function_call":
            item["arguments"] = text
        else:
            self._part()["text"] = text
        item["status"] = status

    def _part(self) -> dict[str, Any]:
        if self._open is None:
            raise RuntimeError("no item is open")
        part: dict[str, Any] = self._open["content"][0]
        return part

    def _event(self, kind: str, **fields: object) -> Event:
        item_id = self._open["id"] if self._open else None
        at = len(self.items) - 1
        return {"type": f"response.{kind}", "item_id": item_id, "output_index": at, **fields}

    def _item_event(self, kind: str, item: dict[str, Any]) -> Event:
        return {
            "type": f"response.{kind}",
            "output_index": len(self.items) - 1,
            "item": {**item},
        }
