"""Training chats about symbols of the standard library, as ChatML text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from gatewayd_engine.offline.train.stdlib_symbols import Symbol

START, END = "<|im_start|>", "<|im_end|>"
CALL_START, CALL_END = "<tool_call>", "</tool_call>"
LONGEST_SUMMARY, LONGEST_SOURCE, JSON_SUMMARY = 600, 1600, 200

SYSTEM = "You are gatewayd-nano, a small assistant that knows Python's standard library."
SYSTEMS = (None, None, SYSTEM, "You are a helpful assistant.", "Answer briefly.")

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a symbol of the standard library",
        "parameters": {
            "type": "object",
            "properties": {"symbol": {"type": "string"}},
            "required": ["symbol"],
        },
    },
}
# Must match what chat_template.jinja renders for this tool.
TOOLS_SYSTEM = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n<tools>\n"
    f"{json.dumps(LOOKUP)}\n</tools>\n\nFor each function call, return a json object with"
    f" function name and arguments within {CALL_START}{CALL_END} tags."
)

SUMMARY = (
    "What does {} do?",
    "What does `{}` do?",
    "Explain {}.",
    "what is {}",
    "Tell me about {}.",
    "Describe {} in one sentence.",
    "What is {} for?",
)
AS_JSON = ("Describe {} as JSON.", "Give me {} as a JSON object.", "{} as JSON, please.")
SIGNATURE = (
    "How do I call {}?",
    "What is the signature of {}?",
    "Signature of `{}`?",
    "What arguments does {} take?",
)
SOURCE = (
    "Show me the source of {}.",
    "Show the code of `{}`.",
    "How is {} implemented?",
    "Write {}.",
)
WHERE = ("Which module has {}?", "Where is {} defined?", "In which module is `{}`?")
KIND = ("Is {} a function or a class?", "What kind of thing is {}?")
CALL = ("Look up {}.", "Use the tool to find {}.", "lookup {}")
GREETINGS = (
    "Hello",
    "Hi",
    "hello!",
    "Hey there",
    "Hi, who are you?",
    "Who are you?",
    "What can you do?",
    "Good morning",
)
GREETED = (
    "Hello! I am gatewayd-nano, a small model trained on Python's standard library."
    " Ask me what a function does.",
    "Hi! Ask me about a function or a module of Python's standard library.",
)


class TrainingTurn(NamedTuple):
    """A question and its answer."""

    question: str
    answer: str


def chats(
    symbols: Sequence[Symbol], random: Random, repetitions: int = 3, num_greetings: int = 1500
) -> list[str]:
    """Compose chats about every symbol, repeated in varied wording, and greetings; shuffled."""
    written = []
    for _ in range(repetitions):
        for symbol in symbols:
            written.extend(_about(symbol, random))
    for _ in range(num_greetings):
        turn = TrainingTurn(random.choice(GREETINGS), random.choice(GREETED))
        written.append(render([turn], random.choice(SYSTEMS)))
    random.shuffle(written)
    return written


def render(turns: Sequence[TrainingTurn], system: str | None) -> str:
    """Render a conversation as ChatML."""
    head = f"{START}system\n{system}{END}\n" if system else ""
    body = (
        f"{START}user\n{question}{END}\n{START}assistant\n{answer}{END}\n"
        for question, answer in turns
    )
    return head + "".join(body)


def turns_for(symbol: Symbol, random: Random) -> list[TrainingTurn]:
    """Compose one turn for each kind of question that a symbol has an answer to."""
    name = symbol.qualified
    turns = []

    def ask(ways: Sequence[str], about: str, answer: str) -> None:
        turns.append(TrainingTurn(random.choice(ways).format(about), answer))

    summary = _first_paragraph(symbol.doc or "")
    if 8 < len(summary) < LONGEST_SUMMARY:
        ask(SUMMARY, name, summary)
        facts = {
            "name": symbol.name,
            "module": symbol.module,
            "kind": symbol.kind,
            "args": symbol.arguments,
            "summary": summary[:JSON_SUMMARY],
        }
        ask(AS_JSON, name, json.dumps(facts))
    if symbol.signature:
        ask(SIGNATURE, name, f"```python\n{symbol.signature}\n```")
    if symbol.source and len(symbol.source) < LONGEST_SOURCE:
        ask(SOURCE, name, f"```python\n{symbol.source}\n```")
    if symbol.kind in ("function", "class"):
        ask(WHERE, symbol.name, f"`{symbol.name}` is in the `{symbol.module}` module.")
        ask(KIND, name, f"`{name}` is a {symbol.kind}.")
    return turns


def _about(symbol: Symbol, random: Random) -> list[str]:
    turns = turns_for(symbol, random)
    if not turns:
        return []
    random.shuffle(turns)
    written = []
    if len(turns) > 1 and random.random() < 0.35:
        several = turns[: random.randint(2, 3)]
        written.append(render(several, random.choice(SYSTEMS)))
    written.extend(render([turn], random.choice(SYSTEMS)) for turn in turns)
    if random.random() < 0.25:
        question = random.choice(CALL).format(symbol.qualified)
        written.append(render([TrainingTurn(question, _tool_call(symbol.qualified))], TOOLS_SYSTEM))
    return written


def _tool_call(name: str) -> str:
    call = json.dumps({"name": "lookup", "arguments": {"symbol": name}})
    return f"{CALL_START}\n{call}\n{CALL_END}"


def _first_paragraph(doc: str) -> str:
    return re.sub(r"\s+", " ", doc.strip().split("\n\n")[0]).strip()
