"""Output of a response, item by item, and its events.

Parts of the output open, continue or close items. The same items form the body of a response that
is not streamed. The boundaries of deltas are recorded, too, so that the same events can be
replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gatewayd.store.ids import new_id
from gatewayd_hooks.parsing import Arguments, Part, Reasoning, Text, ToolCall

Event = dict[str, Any]
Cuts = list[tuple[int, int]]
"""Deltas of an item: number of characters, and number of log-probabilities."""


class Output:
    """Collects the output of one response.

    Attributes:
        items: items so far; the last one may be open, and gets its text when it is closed.
        cuts: delta boundaries of each item.
        is_broken: whether the last item was left open.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.cuts: list[Cuts] = []
        self.is_broken = False
        self._open: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self._blank = ""
        """Leading whitespace, which begins a message only if other text follows."""

    def add_parts(
        self, parts: Sequence[Part], logprobs: Sequence[dict[str, Any]]
    ) -> Iterator[Event]:
        """Add parts; yield events without numbers.

        Args:
            parts: new parts.
            logprobs: log-probabilities of the tokens of their text.
        """
        # Log-probabilities come per delta, not per part: they go with its last text.
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
        """Close the open item; an output without items becomes an empty message.

        Args:
            status: status of the last item, ``completed`` or ``incomplete``.
        """
        if not self.items:
            blank = self._blank
            yield from self._open_text()
            self._pieces.append(blank)
        yield from self._close(status)

    def leave_incomplete(self) -> None:
        """Leave the open item incomplete, after a failure."""
        if self._open is not None:
            self._finalize_text("incomplete")
            self.is_broken = True

    def replay(
        self, item: dict[str, Any], cuts: Cuts | None, *, is_broken: bool
    ) -> Iterator[Event]:
        """Replay the events of a complete item.

        Args:
            item: the stored item.
            cuts: its delta boundaries; None for a single delta.
            is_broken: whether it was left open.
        """
        is_text, is_call = item["type"] == "message", item["type"] == "function_call"
        part = None if is_call else item["content"][0]
        text = item["arguments"] if part is None else part["text"]
        logprobs = part["logprobs"] if part is not None and is_text else []
        if part is None:
            yield from self._open_item({**item, "arguments": ""}, None)
        else:
            empty = {**part, "text": "", **({"logprobs": []} if is_text else {})}
            yield from self._open_item({**item}, empty)
        at = scored = 0
        for length, count in (
            # Without recorded cuts one delta; an empty text has none, as slicing leaves nothing.
            cuts if cuts is not None else [(len(text), len(logprobs))][: len(text)]
        ):
            delta = text[at : at + length]
            at, first, scored = at + length, scored, scored + count
            if is_call:
                yield from self.add_parts([Arguments(0, delta)], [])
            elif is_text:
                yield from self._text(delta, logprobs[first:scored])
            else:
                yield from self._reasoning(delta)
        # Text without a delta, such as the whitespace of an otherwise empty message.
        self._pieces.append(text[at:])
        if is_broken:
            self.leave_incomplete()
        else:
            yield from self._close(item["status"])

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "message":
            # A message of whitespace alone, such as between reasoning and a call, is no item.
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
        yield from self._open_item(
            {"id": new_id("msg_"), "type": "message", "role": "assistant"}, part
        )

    def _reasoning(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            yield from self._open_item(
                {"id": new_id("rs_"), "type": "reasoning", "summary": []}, part
            )
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
        yield from self._open_item(call, None)

    def _add(self, text: str, scored: int = 0) -> None:
        """Append a delta to the open item."""
        self._pieces.append(text)
        self.cuts[-1].append((len(text), scored))

    def _open_item(self, fields: dict[str, Any], part: dict[str, Any] | None) -> Iterator[Event]:
        yield from self._close("completed")
        self._blank = ""
        item = self._open = {**fields, "status": "in_progress"}
        if part is not None:
            # `content_part.added` adds the part, so that the item is shown without it before.
            item["content"] = []
        self.items.append(item)
        self.cuts.append([])
        yield self._item_event("output_item.added", item)
        if part is not None:
            # A new list: the event above keeps the empty one.
            item["content"] = [part]
            yield self._event("content_part.added", content_index=0, part=dict(part))

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        self._finalize_text(status)
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

    def _finalize_text(self, status: str) -> None:
        """Set the final text; joined once, since repeated concatenation copies a long one."""
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
