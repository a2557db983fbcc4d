"""Request handle: tells which engine has or last had the request."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

Make = Callable[..., Awaitable[Any]]


async def test_a_handle_tells_which_engine_served(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(num_replicas=2, FAKE_STEP_MS=5)
    await setup.until(lambda: all(s.model for s in setup.fleet.status()))
    sinks = [make_sink(), make_sink()]
    handles = [setup.fleet.submit(make_request([k], 20), [sink]) for k, sink in enumerate(sinks)]
    assert sorted(handle.replica for handle in handles) == [0, 1]
    for sink in sinks:
        await sink.end()
    assert sorted(handle.replica for handle in handles) == [0, 1]


async def test_a_stream_that_was_lost_was_with_its_engine(
    make_fleet: Make, make_sink: type, make_request: Any
) -> None:
    setup = await make_fleet(FAKE_STEP_MS=5)
    sink = make_sink()
    handle = setup.fleet.submit(make_request([1], 500), [sink])
    await setup.until(lambda: bool(sink.ids))
    os.kill(setup.fleet.status()[0].pid, signal.SIGKILL)
    await sink.end()
    assert handle.replica == 0
