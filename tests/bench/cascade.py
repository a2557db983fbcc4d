"""Routes between nano-draft and nano: quality, agreement and cost beside always the larger one.

The task is to say which of two modules of the standard library has a name, with an answer that a
grammar limits to these two; prices are 1 : 10. `cascade` is measured on names in random order, its
threshold chosen on others; `cost` on simple questions, whose names have the begin of the module's;
`complexity` on simple ones of which each fifth is replaced by one with code and four modules.

    python -m tests.bench.cascade
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, quantiles

import httpx

from tests.bench.report import Finding, machine, publish
from tests.bench.servers import free_port, serving

MODULES = """
    bisect calendar collections configparser contextlib csv datetime decimal difflib fnmatch glob
    gzip hashlib heapq html imaplib inspect ipaddress json linecache locale logging mimetypes
    netrc operator pathlib pickle platform pprint queue random sched secrets selectors shelve shlex
    shutil smtplib socket statistics string subprocess tarfile tempfile textwrap threading timeit
    tokenize traceback types typing unittest uuid warnings wave weakref zipfile
"""
PRICES = {"small": 1.0, "large": 10.0}
TOLERANCES = {"cascade": 0.02, "cost": 0.05, "complexity": 0.05}
"""Part of the questions that the larger model may answer better, by route."""
CODE = "Here is how it begins:\n```python\n{}\n```\n"
SHARE = 0.5
"""Part of the answers of the smaller model that the cascade is to accept."""
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Task:
    """A question with one right answer of several.

    Attributes:
        question: to the model.
        choices: answers that the grammar allows.
        right: the right one.
    """

    question: str
    choices: Sequence[str]
    right: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer with what it cost.

    Attributes:
        text: of the answer.
        cost: of all attempts, in the price of a million tokens of the smaller model.
        score: mean log-probability of its tokens, if they were requested.
        targets: models that were asked.
    """

    text: str
    cost: float
    score: float
    targets: Sequence[str]


Known = tuple[str, str, str]


def names() -> list[Known]:
    """Names of the standard library that one module has, with that and the begin of its source."""
    found: dict[str, tuple[str, str]] = {}
    twice = set()
    for module in MODULES.split():
        imported = importlib.import_module(module)
        for name, value in vars(imported).items():
            if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if value.__module__ == module:
                (twice.add(name) if name in found else None)
                try:
                    found[name] = module, inspect.getsource(value)
                except (OSError, TypeError):
                    continue
    return [(name, *found[name]) for name in sorted(found) if name not in twice]


def question(draw: random.Random, known: Known, num_choices: int, code: str = "") -> Task:
    """Which of some modules has a name; perhaps after its code."""
    name, module, _ = known
    others = draw.sample([one for one in MODULES.split() if one != module], num_choices - 1)
    answer = f"`{name}` is in the `{{}}` module."
    choices = [answer.format(one) for one in sorted([*others, module])]
    return Task(f"{code}Which module has {name}?", choices, answer.format(module))


def simple(draw: random.Random) -> list[Task]:
    """Questions about names that have the first four letters of their module."""
    hinted = [one for one in names() if one[1][:4] in one[0].lower()]
    draw.shuffle(hinted)
    return [question(draw, one, 2) for one in hinted]


def mixed(draw: random.Random) -> list[Task]:
    """Simple questions, and each fifth with code and more choices."""
    plain, known = simple(draw), names()
    draw.shuffle(known)
    for at, one in zip(range(4, len(plain), 5), known, strict=False):
        plain[at] = question(draw, one, 4, CODE.format(one[2][:400]))
    return plain


def configuration(port: int, folder: Path, min_logprob: float) -> str:
    """TOML of a daemon with both models and the routes between them."""
    facts = "".join(
        f"[routes.cost.candidates.{name}]\n"
        f"input_price = {PRICES[name]}\noutput_price = {PRICES[name]}\nquality = {quality}\n"
        for name, quality in (("small", 0.9), ("large", 1.0))
    )
    targets = 'targets = ["small", "large"]'
    return f"""
[server]
port = {port}
[admin]
socket = "{folder}/admin.sock"
[models.small]
path = "embedded:nano-draft"
[models.large]
path = "embedded:nano"
[routes.cascade]
strategy = "cascade"
{targets}
[routes.cascade.cascade]
min_logprob = {min_logprob}
[routes.complexity]
strategy = "complexity"
{targets}
[routes.cost]
strategy = "cost"
{targets}
[routes.cost.cost]
standard_quality = 0.9
{facts}
"""


@contextmanager
def daemon(min_logprob: float) -> Iterator[tuple[str, Path]]:
    """Serve both models; gives the URL and the admin socket."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        file = folder / "gatewayd.toml"
        file.write_text(configuration(port, folder, min_logprob))
        command = [sys.executable, "-m", "gatewayd", "serve", "--config", str(file)]
        with serving(command, port, folder / "log", path="/readyz") as url:
            yield url, folder / "admin.sock"


async def answers(url: str, socket: Path, model: str, asked: Sequence[Task]) -> list[Answered]:
    """Ask a model or a route; costs are those of the attempts in the ledger."""
    slots = asyncio.Semaphore(CONCURRENCY)
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with (
        httpx.AsyncClient(base_url=url, timeout=300) as client,
        httpx.AsyncClient(base_url="http://admin", transport=transport, timeout=60) as admin,
    ):

        async def one(task: Task) -> Answered:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": task.question}],
                "guided_choice": list(task.choices),
                "temperature": 0,
                "logprobs": True,
                "max_tokens": 48,
            }
            async with slots:
                reply = await client.post("/v1/chat/completions", json=body)
                reply.raise_for_status()
                request = reply.headers["x-request-id"]
                explained = (await admin.get(f"/admin/requests/{request}")).json()
            answer = reply.json()
            target = reply.headers.get("x-gatewayd-target", model)
            cost = PRICES[target] * answer["usage"]["total_tokens"]
            attempts = (explained.get("route") or {}).get("attempts", [])
            for attempt in attempts:
                tokens = attempt["prompt_tokens"] + attempt["completion_tokens"]
                cost += PRICES[attempt["target"]] * tokens
            choice = answer["choices"][0]
            scores = [token["logprob"] for token in choice["logprobs"]["content"]]
            asked_of = [attempt["target"] for attempt in attempts]
            return Answered(choice["message"]["content"], cost, mean(scores), asked_of)

        return list(await asyncio.gather(*[one(task) for task in asked]))


def quality(found: Sequence[Answered], asked: Sequence[Task]) -> float:
    """Part of the answers that are right."""
    return mean([one.text == task.right for one, task in zip(found, asked, strict=True)])


def compared(
    route: str, ours: Sequence[Answered], large: Sequence[Answered], asked: Sequence[Task]
) -> list[Finding]:
    """Quality, agreement and cost of a route beside always the larger model."""
    best, tolerance = quality(large, asked), TOLERANCES[route]
    same = mean([one.text == other.text for one, other in zip(ours, large, strict=True)])
    least = (best - tolerance) / best
    cost, usual = (mean([one.cost for one in each]) for each in (ours, large))
    return [
        Finding(f"{route}: quality", "right", quality(ours, asked), best, "large", least),
        Finding(f"{route}: agreement", "same answer", same, 1.0, "large", 1 - tolerance),
        Finding(f"{route}: cost of a request", "tokens x price", cost, usual, "large", 0.6, "<="),
    ]


def threshold(scores: Sequence[float]) -> float:
    """The mean log-probability that a part of the answers reaches."""
    return round(quantiles(scores, n=100)[round(100 * (1 - SHARE)) - 1], 3)


def main() -> int:
    """Calibrate, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=300, help="of each route, at most")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    given = parser.parse_args()
    where, draw = machine(), random.Random(0)
    known = names()
    draw.shuffle(known)
    plain = [question(draw, one, 2) for one in known]
    tuning, asked = plain[:150], plain[150 : 150 + given.tasks]
    with daemon(0.0) as (url, socket):
        tuned = asyncio.run(answers(url, socket, "small", tuning))
    min_logprob = threshold([one.score for one in tuned])
    sets = {"cascade": asked, "cost": simple(draw), "complexity": mixed(draw)}
    findings: list[Finding] = []
    with daemon(min_logprob) as (url, socket):
        for route, every in sets.items():
            few = every[: given.tasks]
            found = {
                model: asyncio.run(answers(url, socket, model, few))
                for model in ("small", "large", route)
            }
            alone, best = quality(found["small"], few), quality(found["large"], few)
            findings.append(
                Finding(f"small alone, {len(few)} tasks", "right", alone, best, "large")
            )
            findings += compared(route, found[route], found["large"], few)
    title = f"routes, prices 1 : 10, min_logprob {min_logprob}"
    return publish(title, where, findings, as_json=given.json, strict=given.strict)


if __name__ == "__main__":
    sys.exit(main())
