"""Training corpus: sources from the library, and chats made of them."""

from __future__ import annotations

import inspect
import json
import textwrap
from pathlib import Path
from random import Random

import jinja2

from gatewayd_engine.model import embedded
from gatewayd_engine.offline.train.chats import LOOKUP, render, turns_for
from gatewayd_engine.offline.train.checkpoint import chat_template
from gatewayd_engine.offline.train.corpus import Corpus, build
from gatewayd_engine.offline.train.stdlib_symbols import (
    SourceFile,
    Symbol,
    library_root,
    source_files,
    symbols,
)


def symbol_called(name: str, files: list[SourceFile]) -> Symbol:
    return next(symbol for symbol in symbols(files) if symbol.qualified == name)


def test_a_symbol_is_what_inspect_says(files: list[SourceFile]) -> None:
    dedent = symbol_called("textwrap.dedent", files)
    assert dedent.kind == "function"
    assert dedent.doc == inspect.getdoc(textwrap.dedent)
    assert dedent.source == inspect.getsource(textwrap.dedent).rstrip("\n")
    assert dedent.signature == f"dedent{inspect.signature(textwrap.dedent)}"
    method = symbol_called("textwrap.TextWrapper.wrap", files)
    assert (method.kind, method.arguments) == ("method", ("text",))
    assert symbol_called("json", files).doc == inspect.getdoc(json)


def test_private_names_are_left_out(files: list[SourceFile]) -> None:
    names = {symbol.name for symbol in symbols(files)}
    assert "TextWrapper" in names
    assert not any(name.startswith("_") for name in names)


def test_the_library_has_its_files_but_not_its_tests() -> None:
    paths = {file.path.as_posix() for file in source_files(library_root())}
    assert {"textwrap.py", "json/decoder.py", "asyncio/queues.py"} <= paths
    assert not any(path.startswith(("test/", "site-packages/", "encodings/")) for path in paths)


def test_a_file_that_is_no_python_is_read_but_has_no_symbols() -> None:
    broken = SourceFile(Path("broken.py"), "def f(:\n")
    corpus = build([broken], seed=0, num_greetings=0)
    assert corpus.code == ["# broken.py\ndef f(:\n"]
    assert corpus.chats == []


def test_answers_are_the_documentation_itself(files: list[SourceFile]) -> None:
    turns = turns_for(symbol_called("json.dumps", files), Random(0))
    answers = [turn.answer for turn in turns]
    assert "Serialize ``obj`` to a JSON formatted ``str``." in answers
    assert "`dumps` is in the `json` module." in answers
    assert "`json.dumps` is a function." in answers
    facts = next(json.loads(answer) for answer in answers if answer.startswith("{"))
    assert facts["module"] == "json"
    assert facts["args"] == ["obj"]


def test_a_seed_repeats_the_corpus_and_another_does_not(files: list[SourceFile]) -> None:
    assert build(files, seed=5, num_greetings=20) == build(files, seed=5, num_greetings=20)
    assert build(files, seed=5).chats != build(files, seed=6).chats


def test_a_saved_corpus_is_read_back(corpus: Corpus, tmp_path: Path) -> None:
    corpus.save(tmp_path)
    assert Corpus.load(tmp_path) == corpus


def test_chats_are_written_as_the_template_writes_them(files: list[SourceFile]) -> None:
    template = jinja2.Environment().from_string(chat_template())
    turns = turns_for(symbol_called("textwrap.fill", files), Random(1))[:2]
    messages = [{"role": "system", "content": "Be brief."}]
    for question, answer in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer})
    assert render(turns, "Be brief.") == template.render(messages=messages)


def test_tool_chats_are_written_as_the_template_writes_them(corpus: Corpus) -> None:
    environment = jinja2.Environment()
    # As transformers has it: no escaping for HTML, keys as they stand.
    environment.filters["tojson"] = json.dumps
    template = environment.from_string(chat_template())
    chats = [chat for chat in corpus.chats if "<tool_call>\n{" in chat]
    assert chats
    for chat in chats:
        question = chat.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        call = json.loads(chat.rsplit("<tool_call>", 1)[1].split("</tool_call>")[0])
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
        ]
        assert chat == template.render(messages=messages, tools=[LOOKUP])


def test_the_template_is_that_of_the_embedded_models() -> None:
    shipped = json.loads((embedded.folder("nano") / "tokenizer_config.json").read_text())
    call = {"name": "lookup", "arguments": {"symbol": "json"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look up json."},
        {"role": "assistant", "content": "Well.", "tool_calls": [{"function": call}, call]},
        {"role": "tool", "content": "a module"},
        {"role": "assistant", "content": "A module."},
        {"role": "user", "content": " Thanks \n"},
    ]
    for trim in (False, True):  # as plain jinja2 and as transformers render
        environment = jinja2.Environment(trim_blocks=trim, lstrip_blocks=trim)
        ours = environment.from_string(chat_template())
        theirs = environment.from_string(shipped["chat_template"])
        for start in (0, 1):
            for tools in (None, [LOOKUP]):
                for prompt in (False, True):
                    given = {
                        "messages": messages[start:],
                        "tools": tools,
                        "add_generation_prompt": prompt,
                    }
                    assert ours.render(given) == theirs.render(given)
