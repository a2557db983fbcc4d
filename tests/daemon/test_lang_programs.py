"""Lang programs: run against a real daemon over the embedded model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from gatewayd.lang import (
    GenError,
    Message,
    Server,
    State,
    assistant,
    function,
    gen,
    join,
    select,
    user,
)
from gatewayd_lang.loop import submit
from tests.daemon.conftest import NANO_DAEMON, Running, StartDaemon, nano_daemon

FIELDS = {
    "module": r"[a-z]{2,12}(\.[a-z]{2,8})?",
    "version": r"[1-3]\.(0|[1-9][0-9]?)",
    "signature": r"\(([a-z]{1,6}(, [a-z]{1,6}){0,3})?\) -> (int|str|None)",
}
PREFIX = "The quick brown fox jumps over the lazy dog, and the dog sleeps on"
LONG = [
    " because all of the summer was warm and dry, and so was June",
    "; nobody knows how many times the two of them have done that",
    ". Then it wakes up, looks around and asks who has been there",
    ", while the fox reads the documentation of the json module",
]
COUNTER = "vllm:request_prefill_kv_computed_tokens_sum"
SHORT = [" one", "; two", ". So", ", or"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One daemon for all tests that count nothing."""
    with nano_daemon(tmp_path_factory.mktemp("programs")) as daemon, Server(daemon.url) as server:
        yield server


@function
def extract_info(s: State, text: str, seed: int) -> None:
    s += f"{text}\nModule: " + gen("module", regex=FIELDS["module"], seed=seed, temperature=1.5)
    s += "\nSince: " + gen("version", regex=FIELDS["version"], seed=seed, temperature=1.5)
    s += "\nCall: " + gen("signature", regex=FIELDS["signature"], seed=seed, temperature=1.5)


def check_extractions(server: Server, count: int) -> None:
    batch = [{"text": f"shutil.copy{at} copies a file.", "seed": at} for at in range(count)]
    for state in extract_info.on(server).run_batch(batch, concurrency=16):
        for name, expression in FIELDS.items():
            assert re.fullmatch(expression, state[name]), (name, state[name])
        assert state.text.count("\n") == 3


def test_three_gens_with_expressions_match_in_every_run(server: Server) -> None:
    check_extractions(server, 30)


@pytest.mark.slow
def test_three_gens_with_expressions_match_in_a_thousand_runs(server: Server) -> None:
    check_extractions(server, 1000)


def test_a_conversation_with_the_embedded_model(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"enum": [1, 2]}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }

    @function
    def talk(s: State) -> None:
        s += user("What does shutil.copytree do?")
        s += assistant(gen("what", temperature=0))
        s += user("Which module has OrderedDict?")
        s += assistant(gen("where", temperature=0, stop="ctions`"))
        s += user("Is that good?")
        s += assistant(select("good", ["yes, very", "yes", "no"]))
        s += user("As JSON")
        s += assistant(gen("json", json_schema=schema, temperature=1.5))

    state = talk.on(server).stream()
    assert "".join(state.text_iter("what")) == (
        "Recursively copy a directory tree and return the destination directory."
    )
    assert state["where"] == "`OrderedDict` is in the `colle"
    assert state["good"] in ("yes, very", "yes", "no")
    assert json.loads(state["json"]).keys() == {"name", "n"}
    assert state.messages[3] == Message("assistant", state["where"])

    # As if the server had rendered the whole conversation itself; of how the text is cut into
    # tokens, the model has its own mind.
    messages = [message.fields for message in state.messages]
    rendered = submit(server.render(messages, generation_prompt=False)).result()
    assert _text(server, state.ids) == _text(server, rendered)


def _text(server: Server, ids: list[int]) -> str:
    return submit(server.detokenize(ids)).result()


def test_what_the_daemon_refuses_names_the_gen(server: Server) -> None:
    @function
    def wrong(s: State) -> None:
        s += "Year: " + gen("year", regex="[0-9")

    with pytest.raises(GenError, match=r"gen 'year': .*regex") as caught:
        wrong.on(server).run()
    assert caught.value.status == 400
    assert caught.value.param == "structured_outputs.regex"


@function
def branches(s: State, prefix: str, tails: list[str]) -> list[list[int]]:
    s += prefix
    forks = s.fork(len(tails))
    for fork, tail in zip(forks, tails, strict=True):
        fork += tail + gen("end", max_tokens=3, temperature=0, ignore_eos=True)
    joined = join(forks)
    assert joined.texts == [t + e for t, e in zip(tails, joined["end"], strict=True)]
    return [fork.ids for fork in forks]


@pytest.mark.parametrize(
    ("cache", "page", "tails"),
    [
        ("hash", 16, LONG),
        ("hash", 16, SHORT),
        pytest.param("radix", 16, SHORT, marks=pytest.mark.slow),
        pytest.param("radix", 1, LONG, marks=pytest.mark.slow),
        pytest.param("hash", 1, LONG, marks=pytest.mark.slow),
    ],
)
def test_branches_compute_the_prefix_once_and_their_tails(
    start_daemon: StartDaemon, cache: str, page: int, tails: list[str]
) -> None:
    daemon = start_daemon(
        NANO_DAEMON,
        {
            "GATEWAYD_PREFIX_CACHE__STRATEGY": cache,
            "GATEWAYD_ENGINE__PAGE_SIZE_TOKENS": str(page),
        },
    )
    with Server(daemon.url) as server:
        prefix = len(submit(server.tokenize(PREFIX, special=True)).result())
        rests = [len(submit(server.tokenize(tail)).result()) for tail in tails]
        assert page == 1 or prefix % page
        state = branches.on(server).run(PREFIX, tails)
        assert isinstance(state.returned, list)
        assert [len(ids) for ids in state.returned] == [prefix + rest + 3 for rest in rests]
        assert _computed(daemon) == prefix + sum(rests)


def _computed(daemon: Running) -> float:
    page = httpx.get(f"{daemon.url}/metrics").text
    counted = re.search(f"^{COUNTER}.* (.+)$", page, re.MULTILINE)
    assert counted is not None
    return float(counted[1])
