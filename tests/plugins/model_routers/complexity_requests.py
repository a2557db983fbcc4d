"""Requests about the standard library to train and test `complexity` on, split by their wording.

They are the questions that the embedded models were trained on, in those wordings and in others.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gatewayd_engine.offline.train import chats
from gatewayd_engine.offline.train.stdlib_symbols import (
    Symbol,
    library_root,
    source_files,
    symbols,
)
from gatewayd_hooks.targets.model_routing import RoutedRequest

SEED = 0
FOLDS = 4
CODE = "Here is how it begins:\n```python\n{}\n```\n"

_MORE = {
    "summary": """Can you explain {}?|Give a short description of {}.|{}?|Summarize {}.
        |What is the purpose of {}?|In one sentence: {}|When is {} used?|Define {}.""",
    "json": """Return {} as JSON.|JSON of {}|Write {} as a JSON object.|Facts about {} in JSON
        |Encode {} as JSON.|I need JSON about {}.|{} in JSON format|Answer in JSON: {}""",
    "signature": """Which parameters does {} have?|How is {} called?|List the arguments of {}.
        |Show the signature of {}.|What does {} accept?|Calling {}: with which arguments?
        |Parameters of {}?|What do I pass to {}?""",
    "source": """Print the implementation of {}.|What is the code of {}?|Implement {}.
        |Source code of {}, please.|I want to read the source of {}.|How is {} written?
        |Give me the code of {}.|Show how {} is implemented.""",
    "where": """Which module defines {}?|Where do I find {}?|From which module is {} imported?
        |Which module contains `{}`?|Name the module of {}.|What do I import to use {}?
        |{} is in which module?|Where does {} come from?""",
    "kind": """Is `{}` a class?|What is {}, a function or a class?|Does {} name a class?
        |Function or class: {}|Say what kind of symbol {} is.|Is {} a method?
        |Class or function? `{}`|Is `{}` callable as a function?""",
    "call": """Please look up {}.|Find {} with the tool.|Use lookup for {}.|Search for {}.
        |Call the tool for `{}`.|Get the entry of {}.|Query {}.|Can you look {} up?""",
}
WORDINGS = {
    kind: (*known, *(one.strip() for one in _MORE[kind].split("|")))
    for kind, known in {
        "summary": chats.SUMMARY,
        "json": chats.AS_JSON,
        "signature": chats.SIGNATURE,
        "source": chats.SOURCE,
        "where": chats.WHERE,
        "kind": chats.KIND,
        "call": chats.CALL,
    }.items()
}
"""Wordings by the kind of the answer; a fold holds out one in `FOLDS` of each kind."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and what it is grouped by.

    Attributes:
        request: as the router sees it.
        prompt: as the models see it.
        choices: answers that a grammar allows; empty for any.
        kind: of the answer.
        wording: fold of the wording.
        module: fold of the module that the question is about.
    """

    request: RoutedRequest
    prompt: str
    choices: Sequence[str]
    kind: str
    wording: int
    module: int


def asked(count: int, seed: int = SEED) -> list[Asked]:
    """Draw requests about random symbols, each in a random wording."""
    draw, found = Random(seed), symbols(source_files(library_root()))
    defined = [symbol for symbol in found if symbol.kind in ("function", "class")]
    # Methods are most of the symbols.
    return [_asked(draw, draw.choice(defined if at % 2 else found), found) for at in range(count)]


def _asked(draw: Random, symbol: Symbol, found: Sequence[Symbol]) -> Asked:
    is_defined = symbol.kind in ("function", "class")
    kinds = ["summary", "json", "call"]
    kinds += ["signature"] * bool(symbol.signature) + ["source"] * bool(symbol.source)
    # Module and kind, which have short answers, as often as the others.
    kinds += ["where", "where", "where", "kind", "kind"] * is_defined
    kind = draw.choice(kinds)
    at = draw.randrange(len(WORDINGS[kind]))
    about = symbol.name if kind == "where" else symbol.qualified
    text, choices = WORDINGS[kind][at].format(about), list[str]()
    if is_defined and draw.random() < 0.15:
        text = CODE.format(symbol.source[: draw.choice((100, 200, 400))]) + text
    if kind == "where" and draw.random() < 0.5:
        modules = {draw.choice(found).module for _ in range(draw.randint(1, 3))} | {symbol.module}
        choices = [f"`{symbol.name}` is in the `{one}` module." for one in sorted(modules)]
    uses_tool = kind == "call"
    system = chats.TOOLS_SYSTEM if uses_tool else draw.choice(chats.SYSTEMS)
    before: list[chats.TrainingTurn] = []
    if not uses_tool and draw.random() < 0.25:
        before = [one for one in chats.turns_for(draw.choice(found), draw) if len(one.answer) < 200]
        before = before[: draw.randint(1, 2)]
    written = chats.render([*before, chats.TrainingTurn(text, "")], system)
    # The definitions of tools are no message.
    parts = [text, *(part for turn in before for part in turn)]
    parts += [system] if system and not uses_tool else []
    request = RoutedRequest(
        request_id="r",
        text=text,
        num_chars=sum(map(len, parts)),
        num_messages=len(parts),
        num_tools=int(uses_tool),
        needs_json=bool(choices),
    )
    module = zlib.crc32(symbol.module.encode()) % FOLDS
    prompt = written.removesuffix(f"{chats.END}\n")
    return Asked(request, prompt, choices, kind, at % FOLDS, module)


def requests_digest(every: Sequence[Asked]) -> str:
    """Digest of requests: those of another Python's standard library are others."""
    texts = "\0".join(one.prompt for one in every)
    return hashlib.sha256(texts.encode("utf-8", "replace")).hexdigest()


class Split(NamedTuple):
    """Parts of the requests, bool ``[n]``: neither wording nor module is in both."""

    train: NDArray[np.bool_]
    test: NDArray[np.bool_]


def split(every: Sequence[Asked], fold: int) -> Split:
    """Hold out a fold of the wordings and of the modules."""
    wording = np.array([one.wording for one in every]) == fold
    module = np.array([one.module for one in every]) == fold
    return Split(~wording & ~module, wording & module)
