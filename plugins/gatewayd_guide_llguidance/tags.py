"""Converts formats to Lark: sequences, free text, and triggered tags.

llguidance tokenizes a text into lexemes by longest match. An expression therefore becomes one
terminal with the text that ends it, and free text ends at the first occurrence of its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from gatewayd_hooks.guiding import GrammarRefused, GuideSpec
from gatewayd_hooks.helpers.formats import AnyText, Either, Format, FormatLeaf, InOrder, Tag, Tags
from gatewayd_hooks.helpers.grammars import StructuralTag, head_of, read_choices, shortest

_OTHER = r"[^a-zA-Z0-9 _=<>:;,]"
_ANY = "/(?s:.*)/"


class Writer:
    """Writes one grammar.

    Args:
        special: contents of special tokens, and their ids. One in a text may be that token, or be
            spelled by others.
        rule: writes another spec as a part of a rule.
        terminal: writes it as a part of a terminal; None if it is not a regular language.
    """

    def __init__(
        self,
        special: Mapping[str, int],
        rule: Callable[[GuideSpec], str],
        terminal: Callable[[GuideSpec], str | None],
    ) -> None:
        self._special = special
        self._rule = rule
        self._terminal = terminal
        self._lines: list[str] = []

    def grammar_of(self, found: Format) -> str:
        """Write the grammar.

        Raises:
            GrammarRefused: the end of free text in it cannot be determined.
        """
        start = self._written(found, "")
        return "\n".join([f"start: {start}", *self._lines])

    def _line(self, name: str, body: str) -> str:
        """Add a rule or terminal; ``#`` in ``name`` is replaced with a number."""
        place = len(self._lines)
        name = name.replace("#", str(place))
        self._lines.append(f"{name}: {body}")
        return name.removesuffix("[lazy]")

    def _written(self, found: Format, stop: str) -> str:
        """Write an element as a part of a rule, followed by the text that ends it."""
        match found:
            case FormatLeaf(spec):
                terminal = self._terminal(spec)
                if terminal is None:
                    return f"{self._rule(spec)} {self._spelled(stop)}"
                return self._closed(terminal, stop)
            case AnyText():
                return self._text(stop)
            case InOrder(elements):
                return self._sequence(elements, stop)
            case Either(elements):
                return f"({' | '.join(self._written(one, stop) for one in elements)})"
            case Tag(begin, content, end):
                return f"{self._spelled(begin)} {self._written(content, end + stop)}"
            case Tags(tags, frame) if frame.separator is None:
                if stop:
                    raise GrammarRefused("triggered_tags must be at the end of the format")
                return self._triggered(tags, frame)
            case Tags(tags, frame):
                return f"{self._separated(tags, frame)} {self._spelled(stop)}"

    def _closed(self, terminal: str, stop: str) -> str:
        whole = f"({terminal}) {_quoted(stop)}" if stop else terminal
        first = self._line("TERM_#", whole)
        if not (mark := self._mark(stop)):
            return first
        # The delimiter may also be a special token, which ends the terminal before it.
        bare = self._line("TERM_#", terminal)
        return f"({first} | {bare} <[{self._special[mark]}]> {self._spelled(stop[len(mark) :])})"

    def _text(self, stop: str) -> str:
        if not stop:
            return self._line("TEXT_#", _ANY)
        # Lazy: the text ends at the first occurrence of its delimiter.
        first = self._line("text_#[lazy]", f"{_ANY} {_quoted(stop)}")
        if not (mark := self._mark(stop)):
            return first
        # Before the special token the text must not contain the same delimiter in characters.
        free = self._line("TEXT_#", _without([stop]))
        return f"({first} | {free} <[{self._special[mark]}]> {self._spelled(stop[len(mark) :])})"

    def _sequence(self, elements: tuple[Format, ...], stop: str) -> str:
        parts: list[str] = []
        at = 0
        while at < len(elements):
            one, at = elements[at], at + 1
            # Adjacent regular elements form one terminal: as lexemes of their own each would match
            # greedily.
            terminals = []
            if isinstance(one, FormatLeaf) and (terminal := self._terminal(one.spec)) is not None:
                terminals.append(terminal)
                while at < len(elements) and (more := self._regular(elements[at])) is not None:
                    terminals.append(more)
                    at += 1
            end = stop if at == len(elements) else ""
            if terminals:
                parts.append(self._closed(" ".join(f"({part})" for part in terminals), end))
                continue
            if at < len(elements):
                # A constant ends the element before it, as the end of a tag does.
                if constant := _constant(elements[at]):
                    at += 1
                    end = constant + (stop if at == len(elements) else "")
                elif _is_open(one):
                    raise GrammarRefused(
                        "any_text must be at the end of the format, before a const_string, or "
                        "before the end of its tag"
                    )
            parts.append(self._written(one, end))
        return " ".join(parts)

    def _regular(self, found: Format) -> str | None:
        return self._terminal(found.spec) if isinstance(found, FormatLeaf) else None

    # Tags

    def _separated(self, tags: tuple[Tag, ...], frame: StructuralTag) -> str:
        first = self._line("tag_#", " | ".join(self._written(tag, "") for tag in tags))
        more = (
            "" if frame.stop_after_first else f" ({self._spelled(frame.separator or '')} {first})*"
        )
        return f"({first}{more}){'' if frame.at_least_one else '?'}"

    def _triggered(self, tags: tuple[Tag, ...], frame: StructuralTag) -> str:
        text = self._line("TEXT_#", _without(frame.triggers))
        # The shortest trigger that begins a structure matches first.
        heads_of_all = shortest(frame.triggers)
        begun: dict[str, list[Tag]] = {head: [] for head in heads_of_all}
        for tag in tags:
            if (begins := head_of(tag.begin, heads_of_all)) is not None:
                begun[begins].append(tag)
        # Each structure with the free text before it, and without.
        items: list[tuple[str, str]] = []
        for trigger in [one for one in frame.triggers if one in begun]:
            inner, heads = [], list[str]()
            for tag in begun[trigger]:
                body = self._line("body_#", self._written(tag.content, tag.end))
                inner.append(f"{self._spelled(tag.begin[len(trigger) :])} {body}")
                if (mark := self._mark(tag.begin)) and mark.startswith(trigger):
                    rest = self._spelled(tag.begin[len(mark) :])
                    heads.append(f"<[{self._special[mark]}]> {rest} {body}")
            # Lazy: free text ends at the first trigger.
            head = self._line("head_#[lazy]", f"{_ANY} {_quoted(trigger)}")
            behind = self._line("inner_#", " | ".join(inner))
            items.append((f"{head} {behind}", f"{_quoted(trigger)} {behind}"))
            items += [(f"{text} {one}", one) for one in heads]
        item = self._line("item_#", " | ".join(free for free, _ in items))
        first = f"({' | '.join(bare for _, bare in items)})"
        match frame.at_least_one, frame.stop_after_first:
            case True, True:
                return first
            case True, False:
                return f"{first} ({item})* {text}"
            case False, True:
                return f"({item} | {text})"
            case _:
                return f"({item})* {text}"

    # Texts

    def _mark(self, text: str) -> str:
        """Return the special token that a text begins with."""
        return max((one for one in self._special if text.startswith(one)), key=len, default="")

    def _spelled(self, text: str) -> str:
        """Write a text in which special tokens may replace their contents."""
        # Longest first, as one special token may begin with another.
        contents = sorted((one for one in self._special if one in text), key=len, reverse=True)
        if not contents:
            return _quoted(text) if text else ""
        parts = re.split(f"({'|'.join(map(re.escape, contents))})", text)
        return " ".join(
            f"({_quoted(part)} | <[{self._special[part]}]>)"
            if part in self._special
            else _quoted(part)
            for part in parts
            if part
        )


def _is_open(found: Format) -> bool:
    """Whether only the element after it determines where it ends."""
    match found:
        case AnyText():
            return True
        case InOrder(elements):
            return _is_open(elements[-1])
        case Either(elements):
            return any(map(_is_open, elements))
        case Tag(_, content, end):
            return not end and _is_open(content)
        case Tags(_, frame):
            return frame.separator is None
        case _:
            return False


def _constant(found: Format) -> str:
    """Return the text that a form always is; empty for others."""
    if not (isinstance(found, FormatLeaf) and found.spec.form == "choice"):
        return ""
    first, *others = read_choices(found.spec.text)
    return "" if others else first


def _without(texts: tuple[str, ...] | list[str]) -> str:
    """Return a terminal of text that contains none of some texts."""
    # llguidance's expressions have intersection (`&`) and complement (`~`).
    letters = "|".join(re.sub(_OTHER, lambda c: f"\\x{{{ord(c[0]):x}}}", one) for one in texts)
    return f"{_ANY} & ~/(?s:.*)({letters})(?s:.*)/"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
