"""How often greedy answers of gatewayd and of llama.cpp agree on the same GGUF file.

``python -m tests.bench.cpu.agreement`` converts the embedded model with llama.cpp's converter,
serves each file alone with both servers, and sends 100 prompts as text. The measure is how often
llama.cpp agrees with itself at another batch size: sums in another order are other last bits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gatewayd_engine.offline.quality.texts import QualityText, bundled
from tests.bench import llama_cpp, servers
from tests.bench.cpu.models import NANO, ServedFile
from tests.bench.cpu.processor import described

SCHEMES = ("f16", "q8_0", "q4_0", "q4_k")
NUM_PROMPTS = 100
_OUTPUT_TOKENS = 64
_AT_ONCE = 8
_SLOT_TOKENS = 1024
_CODE_LENGTH = 400
"""Characters of a piece of code."""
_NO_BOS = ("--override-kv", "tokenizer.ggml.add_bos_token=bool:false")
"""For llama.cpp, which puts token 11 before texts of this kind of vocabulary; this model has no
BOS, so its file names none."""
_QUESTION = "<|im_start|>user\n"
_END = "<|im_end|>"


class Answer(NamedTuple):
    """A text with the reason of its end, and the number of the prompt's tokens."""

    text: str
    prompt_tokens: int


class Prompt(NamedTuple):
    """A route and the part of a request's body that is not the same for all."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Equal answers with one file, of the chats and of the pieces of code.

    Attributes:
        title: of the file.
        theirs: llama.cpp, one request at a time and several at once.
        both: gatewayd and llama.cpp, one request at a time.
        floats: gatewayd with activations that are not rounded, and llama.cpp.
        rounded: gatewayd with activations that are not rounded, and as it is.
        ours: gatewayd, one request at a time and several at once.
    """

    title: str
    theirs: tuple[int, int]
    both: tuple[int, int]
    floats: tuple[int, int]
    rounded: tuple[int, int]
    ours: tuple[int, int]


def prompts(texts: Sequence[QualityText]) -> list[Prompt]:
    """Half of them first questions of chats, half pieces of code to be continued."""
    questions, code = [], []
    for text in texts:
        if text.text.startswith(_QUESTION):
            questions.append(text.text.removeprefix(_QUESTION).partition(_END)[0])
        elif text.kind == "code":
            plain = text.text.replace("<|endoftext|>", "")
            code.append([piece for piece in _pieces(plain) if piece.strip()])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*code))
    pieces = [piece for piece in turns if piece is not None]
    half = NUM_PROMPTS // 2
    chats = [
        Prompt("/v1/chat/completions", {"messages": [{"role": "user", "content": question}]})
        for question in dict.fromkeys(questions)
    ]
    continued = [Prompt("/v1/completions", {"prompt": piece}) for piece in dict.fromkeys(pieces)]
    return chats[:half] + continued[:half]


def _pieces(text: str) -> list[str]:
    starts = range(0, len(text) - _CODE_LENGTH, _CODE_LENGTH)
    return [text[start : start + _CODE_LENGTH] for start in starts]


def answers(url: str, sent: Sequence[Prompt], at_once: int) -> list[Answer]:
    """Greedy answers of a server.

    Raises:
        OSError: a request fails.
    """

    def ask(prompt: Prompt) -> Answer:
        options = {"model": model, "temperature": 0, "max_tokens": _OUTPUT_TOKENS}
        found = _fetched(url + prompt.path, prompt.body | options)
        choice = found["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        reason = choice["finish_reason"]
        return Answer(f"{text} ({reason})", found["usage"]["prompt_tokens"])

    model = _fetched(f"{url}/v1/models")["data"][0]["id"]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, sent))


def _fetched(url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, headers={"content-type": "application/json"})
    if body is not None:
        request.data = json.dumps(body).encode()
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def compare(file: ServedFile, sent: Sequence[Prompt], llama_server: Path) -> Agreement:
    """Ask both servers, on a fresh process each time.

    Raises:
        RuntimeError: a server does not start, or they read a prompt as other tokens.
        OSError: a request fails.
    """
    file.make()

    def llama(at_once: int) -> list[Answer]:
        port = servers.free_port()
        command = servers.llama_cpp(
            llama_server, file.gguf, port, slots=at_once, slot_tokens=_SLOT_TOKENS, threads=1
        )
        return _asked([*command, *_NO_BOS], port, "/health", sent, at_once)

    def gatewayd(at_once: int, activations: str = "int8") -> list[Answer]:
        port = servers.free_port()
        command = servers.gatewayd(port, "--model", str(file.gguf))
        env = {"GATEWAYD_ENGINE__CPU_ACTIVATIONS": activations}
        return _asked(command, port, "/readyz", sent, at_once, env)

    theirs, theirs_together = llama(1), llama(_AT_ONCE)
    ours, ours_together, floats = gatewayd(1), gatewayd(_AT_ONCE), gatewayd(1, "float")
    if [answer.prompt_tokens for answer in ours] != [answer.prompt_tokens for answer in theirs]:
        raise RuntimeError(f"{file.gguf}: the servers read a prompt as other tokens")
    return Agreement(
        file.title,
        theirs=num_equal(theirs, theirs_together),
        both=num_equal(ours, theirs),
        floats=num_equal(floats, theirs),
        rounded=num_equal(floats, ours),
        ours=num_equal(ours, ours_together),
    )


def _asked(
    command: Sequence[str],
    port: int,
    path: str,
    sent: Sequence[Prompt],
    at_once: int,
    env: Mapping[str, str] | None = None,
) -> list[Answer]:
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.running(command, port, Path(folder) / "log", path=path, env=env) as server,
    ):
        return answers(server.url, sent, at_once)


def num_equal(some: Sequence[Answer], others: Sequence[Answer]) -> tuple[int, int]:
    """Number of answers that are equal to the end, of the first half and of the second."""
    equal = [one == other for one, other in zip(some, others, strict=True)]
    half = len(equal) // 2
    return sum(equal[:half]), sum(equal[half:])


def markdown(found: Sequence[Agreement]) -> str:
    """A table with a row for each file."""
    titles = (
        f"llama.cpp, batch 1 and {_AT_ONCE}",
        "gatewayd and llama.cpp",
        "gatewayd, float activations, and llama.cpp",
        "gatewayd, float activations and not",
        f"gatewayd, batch 1 and {_AT_ONCE}",
    )
    lines = [f"| file | {' | '.join(titles)} |", "| --- |" + " ---: |" * len(titles)]
    for one in found:
        pairs = (one.theirs, one.both, one.floats, one.rounded, one.ours)
        cells = (f"{chats} + {code}" for chats, code in pairs)
        lines.append(f"| {one.title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table, and the machine that it was made on."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cpu.agreement")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help=f"of {', '.join(SCHEMES)}")
    parser.add_argument("--llama-server", type=Path, default=llama_cpp.tool("llama-server"))
    args = parser.parse_args()
    sent = prompts(bundled())
    files = [ServedFile(NANO, scheme) for scheme in args.schemes.split(",")]
    try:
        found = [compare(file, sent, args.llama_server) for file in files]
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"cannot be measured: {error}", file=sys.stderr)
        return 1
    print(json.dumps(described()))
    print(markdown(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
