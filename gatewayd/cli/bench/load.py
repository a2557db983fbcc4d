"""Load generator: sends requests at a concurrency or a rate and records the responses.

Closed loop: a worker per concurrent request, which sends the next one when the last has ended.
Open loop: requests are sent at times drawn from a Poisson process, independent of the responses,
and latencies count from these times.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gatewayd.cli.bench.record import RequestRecord
from gatewayd.cli.bench.workload import Item
from gatewayd.cli.client.api import ApiClient, ApiError

Progress = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Server and request settings of a benchmark.

    Attributes:
        client: client of the server.
        model: name of the model.
        chat: whether to use ``/v1/chat/completions`` instead of ``/v1/completions``.
        ignore_eos: whether to generate past the end token, to the full length.
        temperature: sampling temperature; 0 is greedy.
    """

    client: ApiClient
    model: str
    chat: bool = False
    ignore_eos: bool = True
    temperature: float = 0.0

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, item: Item) -> dict[str, Any]:
        """Build the body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": item.output_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not self.chat:
            body["prompt"] = item.prompt
        elif isinstance(item.prompt, str):
            body["messages"] = [{"role": "user", "content": item.prompt}]
        else:
            body["messages"] = item.prompt
        if self.ignore_eos:  # an extension of OpenAI's API, so only sent if set
            body["ignore_eos"] = True
        return body


@dataclass(frozen=True, slots=True)
class Stop:
    """End of a load level: after a number of requests, or no new ones after a time."""

    requests: int | None = None
    seconds: float | None = None

    def is_reached(self, num_sent: int, elapsed: float) -> bool:
        """Whether to send no further request."""
        return (self.requests is not None and num_sent >= self.requests) or (
            self.seconds is not None and elapsed >= self.seconds
        )


async def send(target: LoadTarget, item: Item, intended: float | None = None) -> RequestRecord:
    """Send one request and read its stream to the end; errors are recorded, not raised."""
    now = time.perf_counter
    body = target.body(item)
    # After the body is built: that is the client's time, not the server's.
    sent = now()
    record = RequestRecord(intended=sent if intended is None else intended, sent=sent)
    counted = None
    events = 0
    try:
        # Closes the connection here after an error, not when the generator is collected.
        async with aclosing(target.client.stream(target.path, body)) as stream:
            async for chunks in stream:
                arrived = now()
                before = events
                for chunk in chunks:
                    events += any(choice.has_output for choice in chunk.choices)
                    counted = chunk.usage or counted
                if events > before:
                    record.arrivals.append(arrived)
    except ApiError as error:
        record.error = error.code
    record.ended = now()
    record.output_tokens = counted.completion_tokens if counted else events
    if counted:
        record.prompt_tokens = counted.prompt_tokens
        record.cached_tokens = counted.cached_tokens
    return record


async def closed_loop(
    target: LoadTarget,
    items: Iterator[Item],
    concurrency: int,
    stop: Stop,
    progress: Progress = lambda record: None,
) -> list[RequestRecord]:
    """Keep ``concurrency`` requests in flight until ``stop``; return records in order of end."""
    records: list[RequestRecord] = []
    begin = time.perf_counter()
    num_sent = 0

    async def worker() -> None:
        nonlocal num_sent
        while not stop.is_reached(num_sent, time.perf_counter() - begin):
            # Counted before it is sent, because the other workers check the limit meanwhile.
            num_sent += 1
            record = await send(target, next(items))
            records.append(record)
            progress(record)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return records


async def open_loop(
    target: LoadTarget,
    items: Iterator[Item],
    rate: float,
    stop: Stop,
    seed: int,
    progress: Progress = lambda record: None,
) -> list[RequestRecord]:
    """Send requests at a mean ``rate`` per second, independent of the responses."""
    records: list[RequestRecord] = []
    # A generator of its own: arrival times do not depend on the prompts.
    chance = random.Random(f"arrivals {seed}")

    async def one(item: Item, intended: float) -> None:
        record = await send(target, item, intended)
        records.append(record)
        progress(record)

    begin = time.perf_counter()
    num_sent = 0
    async with asyncio.TaskGroup() as group:
        due = chance.expovariate(rate)
        while not stop.is_reached(num_sent, due):
            # By the schedule, not by the previous request: a late wake-up does not lower the rate.
            if (delay := begin + due - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            num_sent += 1
            group.create_task(one(next(items), begin + due))
            due += chance.expovariate(rate)
    return records
