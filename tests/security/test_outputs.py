"""Model outputs and folders: code, decompression bombs, lone surrogates.

Of the classes of CVE-2025-9141 (a parser that evaluates what a model says), CVE-2025-66448 and
CVE-2026-46517 (code of a checkpoint), CVE-2026-7482 (a header that says more than there is),
vLLM 48853 (a prompt that ends in half a character is told as an answer).
"""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer
from gatewayd_engine.model.embedded import folder as embedded
from gatewayd_engine.model.loading.loader import load
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.spec import read_spec
from gatewayd_hooks.parsing import Tool, ToolParserStrategy
from gatewayd_hooks.testing.parsing import read
from gatewayd_tools_hermes.config import HermesConfig
from gatewayd_tools_hermes.strategy import Hermes
from gatewayd_tools_llama3.config import Llama3Config
from gatewayd_tools_llama3.strategy import Llama3
from gatewayd_tools_mistral.config import MistralConfig
from gatewayd_tools_mistral.strategy import Mistral
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import running

TOOLS = [Tool("f", "", None, strict=False)]
_watched: list[str] | None = None
CODE = ("exec", "compile", "import", "os.system", "subprocess.Popen", "pickle.find_class", "open")
PAYLOADS = (
    "__import__('os').system('true')",
    "{'a': __import__('os')}",
    "().__class__.__base__.__subclasses__()",
    "eval('1+1')",
    "lambda: 0",
    "[x for x in (1,)]",
    "f'{1+1}'",
    "\\u0065val(1)",
    "cos\nsystem\n(S'true'\ntR.",
)
WRAPPED = (
    '<tool_call>{{"name": "f", "arguments": {0}}}</tool_call>',
    '<tool_call>{{"name": {0}, "arguments": {{}}}}</tool_call>',
    "<tool_call>{0}</tool_call>",
    '{{"name": "f", "parameters": {0}}}',
    "<|python_tag|>{0}",
    '[TOOL_CALLS][{{"name": "f", "arguments": {0}}}]',
    "[TOOL_CALLS]f[ARGS]{0}",
    "f(a={0})",
    "[f(a={0})]",
)


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched is not None and event in CODE:
        _watched.append(event)


@contextmanager
def watched() -> Iterator[list[str]]:
    """What of code and files is used meanwhile; a hook of the interpreter cannot be taken away."""
    global _watched
    if not hasattr(sys, "_watching_code"):
        sys.addaudithook(_note)
        sys._watching_code = True  # type: ignore[attr-defined]
    _watched = []
    try:
        yield _watched
    finally:
        _watched = None


def test_what_is_watched_is_seen() -> None:
    with watched() as seen:
        eval("1 + 1")
    assert {"compile", "exec"} <= set(seen)


def test_no_word_of_a_model_is_run() -> None:
    """CVE-2025-9141."""
    parsers: list[ToolParserStrategy] = [
        Hermes(HermesConfig()),
        Llama3(Llama3Config()),
        Mistral(MistralConfig()),
    ]
    for strategy in parsers:
        read(strategy.parser(TOOLS), ["x"])  # imports what it needs
    with watched() as seen:
        for strategy in parsers:
            for form in WRAPPED:
                for payload in PAYLOADS:
                    for words in (form.format(payload), form.format(json.dumps(payload))):
                        read(strategy.parser(TOOLS), [words])
    assert seen == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the embedded model's form."""
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((embedded("nano") / name).read_bytes())
    return tmp_path


def header(fields: Any) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text


def tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADERS = {
    "nothing": b"",
    "a length without an end": struct.pack("<Q", 2**63 - 1) + b"{}",
    "a length of a terabyte": struct.pack("<Q", 1 << 40) + b"{}",
    "nested without an end": header(b"[" * 200_000),
    "nested and closed": header(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "offsets beyond the file": header({"a": tensor([1 << 20], 0, 4 << 20)}) + b"x" * 64,
    "offsets below nothing": header({"a": tensor([1], -4, 0)}) + b"x" * 64,
    "offsets that overlap": header({"a": tensor([8], 0, 32), "b": tensor([8], 16, 48)}) + b"x" * 48,
    "an end before its beginning": header({"a": tensor([1], 8, 4)}) + b"x" * 64,
    "a size that overflows": header({"a": tensor([1 << 40, 1 << 40], 0, 4)}) + b"x" * 4,
    "a size of no bytes": header({"a": tensor([2**62, 4, 0], 0, 4)}) + b"x" * 4,
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_file_of_weights_that_says_more_than_it_has_is_refused(folder: Path, name: str) -> None:
    """CVE-2026-7482, CVE-2024-12055, CVE-2025-0317."""
    (folder / "model.safetensors").write_bytes(HEADERS[name])
    began = time.monotonic()
    with pytest.raises(LoadError, match=r"not a whole safetensors file|are not those of"):
        load(folder, read_spec(folder), torch.float32, "cpu", lambda part: None)
    assert time.monotonic() - began < 20


def spoiled(change: Any) -> str:
    spec = json.loads((embedded("nano") / "tokenizer.json").read_text())
    change(spec)
    return json.dumps(spec)


TOKENIZERS = {
    "nothing": "",
    "no object": "[]",
    "nested without an end": "[" * 200_000,
    "nested and closed": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "an id beyond all": spoiled(lambda spec: spec["model"]["vocab"].update(x=4_000_000_000)),
    "an id below nothing": spoiled(lambda spec: spec["model"]["vocab"].update(x=-1)),
    "an id that is no number": spoiled(lambda spec: spec["model"]["vocab"].update(x="1")),
    "no model": spoiled(lambda spec: spec.pop("model")),
    "a pattern that is none": spoiled(
        lambda spec: spec.update(normalizer={"type": "Replace", "pattern": {"Regex": "(((("}})
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_that_is_a_bomb_is_refused(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"not a tokenizer\.json|one of which has the id"):
        Tokenizer(TOKENIZERS[name]).vocab_size  # noqa: B018
    assert time.monotonic() - began < 20


def test_code_of_a_checkpoint_is_not_run(folder: Path, tmp_path: Path) -> None:
    """CVE-2025-66448, CVE-2026-22807, CVE-2026-27893, CVE-2026-46517."""
    canary = tmp_path / "canary"
    code = f"open({str(canary)!r}, 'w')\nclass Model: ...\n"
    for name in ("evil.py", "modeling_evil.py", "tokenization_evil.py", "__init__.py"):
        (folder / name).write_text(code)
    poisoned = {"auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Model"}}
    for name in ("config.json", "tokenizer_config.json"):
        file = folder / name
        told = json.loads(file.read_text()) if file.exists() else {}
        told |= poisoned | {"trust_remote_code": True, "tokenizer_class": "evil.Model"}
        file.write_text(json.dumps(told))
    spec = read_spec(folder)
    for weights in embedded("nano").glob("*.safetensors*"):
        (folder / weights.name).symlink_to(weights)
    load(folder, spec, torch.float32, "cpu", lambda part: None)
    TextModel.from_folder(folder)
    assert not canary.exists()
    assert not {"evil", "modeling_evil"} & set(sys.modules)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_half_a_character_at_a_prompts_end_tells_nothing_of_the_prompt(
    text: TextModel, is_stream: bool
) -> None:
    """VLLM 48853: the whole prompt came with the first piece of the answer."""
    whole = text.tokenizer.encode("the canary sings \U0001d4b3")
    half = text.tokenizer.encode("\U0001d4b3")[:-1]
    assert half
    prompt = whole[:-1]
    rest = whole[-1:]
    for answer in (rest, [300], half):
        async with running(text, FakeFleet(says([*answer, 301]))) as gateway:
            body = {"model": "nano", "prompt": prompt, "max_tokens": 8, "stream": is_stream}
            answered = await gateway.http.post("/v1/completions", json=body)
        assert answered.status_code == 200
        assert "canary" not in answered.text
        assert "sings" not in answered.text
