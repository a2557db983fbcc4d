"""Stored responses and batches: kept when the embedded model's engine is killed.

One daemon for all; ``pytest -m slow`` on this file kills the engine twelve times.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx
import openai
import pytest
from openai.types.responses import Response
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon.conftest import Running, nano_daemon
from tests.daemon.test_batches import look
from tests.gatewayd.responses_gateway import ORDER, checked

ASK = "What does os.path.join do?"
CHAT: Final = "/v1/chat/completions"
SYSTEM = "Answer in one word."


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("kept")
    env = {"GATEWAYD_STORE__PATH": str(folder / "store"), "GATEWAYD_ENGINE__THREADS": "1"}
    with nano_daemon(folder, **env) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def respond(client: openai.OpenAI, text: str = ASK, tokens: int = 12, **more: Any) -> Response:
    made = client.responses.create(
        model="nano", input=text, max_output_tokens=tokens, temperature=0, **more
    )
    assert isinstance(made, Response)
    return checked(made)


def said(client: openai.OpenAI, *turns: tuple[str, str], tokens: int = 12) -> str:
    """What a chat completion answers to the same conversation, greedily."""
    messages: Any = [{"role": role, "content": content} for role, content in turns]
    answer = client.chat.completions.create(
        model="nano", messages=messages, max_tokens=tokens, temperature=0
    )
    return answer.choices[0].message.content or ""


def test_a_response_says_what_a_chat_completion_says(client: openai.OpenAI) -> None:
    made = respond(client, instructions=SYSTEM)
    assert made.output_text == said(client, ("system", SYSTEM), ("user", ASK))
    assert made.usage is not None
    assert made.usage.output_tokens <= 12
    counted = client.responses.input_tokens.count(model="nano", input=ASK, instructions=SYSTEM)
    assert made.usage.input_tokens == counted.input_tokens


def test_a_stream_says_the_same_in_the_events_of_the_api(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model="nano", input=ASK, max_output_tokens=200, temperature=0
    ) as stream:
        events = list(stream)
        made = stream.get_final_response()
    kinds = [event.type for event in events]
    assert list(dict.fromkeys(kinds)) == [*ORDER[:-1], f"response.{made.status}"]
    assert kinds.count("response.output_text.delta") > 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert made.output_text == respond(client, tokens=200).output_text
    kept = client.responses.retrieve(made.id)
    assert kept.output_text == made.output_text


def test_a_conversation_goes_on_behind_what_is_kept(client: openai.OpenAI) -> None:
    first = respond(client)
    more = respond(client, "And for two?", previous_response_id=first.id)
    turns = (("user", ASK), ("assistant", first.output_text), ("user", "And for two?"))
    assert more.output_text == said(client, *turns)
    (item,) = client.responses.input_items.list(more.id).data
    assert item.type == "message"


def test_what_is_deleted_or_was_never_kept_is_not_found(client: openai.OpenAI) -> None:
    gone, unkept = respond(client), respond(client, store=False)
    client.responses.delete(gone.id)
    for one in (gone, unkept):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(one.id)
        with pytest.raises(openai.NotFoundError):
            respond(client, "And?", previous_response_id=one.id)


def until(client: openai.OpenAI, response_id: str, *statuses: str) -> Response:
    deadline = time.monotonic() + 30
    while (made := client.responses.retrieve(response_id)).status not in statuses:
        assert time.monotonic() < deadline, made.status
        time.sleep(0.01)
    return checked(made)


def test_the_background_goes_on_without_a_client(client: openai.OpenAI) -> None:
    begun = respond(client, background=True)
    assert begun.status in ("queued", "in_progress")
    made = until(client, begun.id, "completed", "incomplete")
    assert made.output_text == respond(client).output_text


def test_a_stream_of_the_background_is_taken_up_where_it_was_left(client: openai.OpenAI) -> None:
    begun = client.responses.create(
        model="nano", input=ASK, max_output_tokens=200, temperature=0, background=True, stream=True
    )
    seen = []
    for event in begun:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    begun.close()
    response_id = seen[0].response.id  # type: ignore[union-attr]
    after = seen[-1].sequence_number
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=after))
    numbers = [event.sequence_number for event in [*seen, *rest]]
    assert numbers == list(range(len(numbers)))
    texts = [e.delta for e in [*seen, *rest] if e.type == "response.output_text.delta"]
    assert "".join(texts) == client.responses.retrieve(response_id).output_text


def test_the_background_ends_when_it_is_cancelled(client: openai.OpenAI) -> None:
    long: dict[str, Any] = {"tokens": 1500, "background": True, "extra_body": {"ignore_eos": True}}
    begun = respond(client, **long)
    ended = checked(client.responses.cancel(begun.id))
    assert ended.status == "cancelled"
    assert client.responses.retrieve(begun.id).status == "cancelled"
    assert client.responses.cancel(begun.id).status == "cancelled"
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.cancel(respond(client).id)
    assert 400 <= caught.value.status_code < 500


def line(number: int) -> dict[str, Any]:
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": f"What is {number} + {number}?"}],
        "max_tokens": 24,
        "temperature": 0,
        "ignore_eos": True,
    }
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}


def num_answers(daemon: Running) -> float:
    """That the daemon has given to their end, to whomever."""
    page = httpx.get(f"{daemon.url}/metrics").text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:request_success_total"
    )


def batch_through_kills(daemon: Running, client: openai.OpenAI, lines: int, kills: int) -> None:
    """Every line is answered once, as by an engine that nobody kills."""
    rng, restarts = random.Random(kills), daemon.readyz()[1]["replicas"][0]["restarts"]
    before = num_answers(daemon)
    asked = b"".join(json.dumps(line(n)).encode() + b"\n" for n in range(lines))
    file = client.files.create(file=("in.jsonl", asked), purpose="batch")
    batch_id = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h"
    ).id
    deadline = time.monotonic() + 60 * kills

    def wait_for(done: int) -> dict[str, Any]:
        while True:
            batch = look(daemon.url, batch_id)
            if batch["request_counts"]["completed"] >= done:
                return batch
            assert batch["status"] in ("validating", "in_progress", "finalizing"), batch
            assert time.monotonic() < deadline, batch
            time.sleep(rng.uniform(0, 0.01))

    for kill in range(kills):
        batch = wait_for(1 + kill * lines // (kills + 1))
        assert batch["request_counts"]["completed"] < lines, "it is over before all kills"
        killed = daemon.kill_engine()
        while daemon.readyz()[0] != 200 or daemon.engine_pid == killed:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    wait_for(lines)
    while (batch := look(daemon.url, batch_id))["status"] != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
    assert batch["request_counts"] == {"total": lines, "completed": lines, "failed": 0}
    assert batch["error_file_id"] is None
    answers = [
        json.loads(one) for one in client.files.content(batch["output_file_id"]).iter_lines()
    ]
    assert [one["custom_id"] for one in answers] == [f"line-{n}" for n in range(lines)]
    assert len({one["id"] for one in answers}) == lines
    assert daemon.readyz()[1]["replicas"][0]["restarts"] == restarts + kills
    assert num_answers(daemon) - before == lines
    for one, number in zip(answers, range(lines), strict=True):
        body = one["response"]["body"]
        assert body["usage"]["completion_tokens"] == 24
        if number % 8 == 0:
            again = client.post(CHAT.removeprefix("/v1"), body=line(number)["body"], cast_to=object)
            assert body["choices"] == again["choices"]  # type: ignore[index]


def test_a_batch_survives_kills_of_the_real_engine(daemon: Running, client: openai.OpenAI) -> None:
    batch_through_kills(daemon, client, lines=40, kills=1)


@pytest.mark.slow
def test_a_batch_survives_twelve_kills(daemon: Running, client: openai.OpenAI) -> None:
    batch_through_kills(daemon, client, lines=1200, kills=12)
