"""Frames: same messages for any cut of the stream; invalid frames are refused."""

from __future__ import annotations

import itertools
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.process.config import EngineConfig, StrategyChoice
from gatewayd_engine.process.engine_stats import EngineStats
from gatewayd_engine.process.frames import (
    EngineSocket,
    FrameError,
    FrameParser,
    encode,
    event_parser,
)
from gatewayd_engine.process.messages import (
    MAX_FRAME_BYTES,
    Abort,
    Event,
    Fatal,
    Finished,
    Loading,
    SamplingParams,
    Shutdown,
    StepOutput,
    Submit,
)

EVENTS: list[Event] = [
    Loading("weights", 0.5),
    StepOutput(
        EngineStats(step=3), sequences=b"\1" * 8, tokens=b"\2" * 4, finished=[Finished(1, 0)]
    ),
    Fatal("no_memory", "the pool does not fit"),
    StepOutput(EngineStats(), tokens=bytes(300_000)),
]
STREAM = b"".join(encode(event) for event in EVENTS)
CONFIG = EngineConfig(
    model="/models/nano",
    scheduler=StrategyChoice("fcfs", {"max": 1}),
    prefix_cache=None,
    eviction=StrategyChoice("lru"),
    preemption=StrategyChoice("recompute"),
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_every_cut_of_the_stream_gives_the_same_events(cuts: list[int]) -> None:
    parser = event_parser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [e for a, b in itertools.pairwise(edges) for e in parser.feed(STREAM[a:b])]
    assert events == EVENTS
    assert parser.num_pending_bytes == 0


def test_single_bytes_give_the_same_events() -> None:
    parser: FrameParser[Event] = event_parser()
    stream = b"".join(encode(event) for event in EVENTS[:3])
    assert [e for byte in stream for e in parser.feed(bytes([byte]))] == EVENTS[:3]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_event_are_a_frame_error(body: bytes) -> None:
    parser = event_parser()
    frame = struct.pack("<I", len(body)) + body
    try:
        events = parser.feed(frame)
    except FrameError:
        return
    assert all(encode(event) for event in events)  # a real event by luck


def test_an_oversized_length_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(FrameError, match=str(MAX_FRAME_BYTES)):
        event_parser().feed(struct.pack("<I", MAX_FRAME_BYTES + 1))


def test_a_message_over_the_cap_is_not_encoded() -> None:
    with pytest.raises(FrameError, match="a frame holds"):
        encode(StepOutput(EngineStats(), tokens=bytes(MAX_FRAME_BYTES)))


def test_a_command_is_no_event() -> None:
    with pytest.raises(FrameError):
        event_parser().feed(encode(Shutdown()))


def test_the_engine_reads_its_configuration_and_then_commands() -> None:
    ours, theirs = socket.socketpair()
    engine = EngineSocket(theirs)
    submit = Submit([1, 2], b"\0\0\0\0", SamplingParams(max_tokens=3, logit_bias=[(5, -1.0)]))
    ours.sendall(encode(CONFIG) + encode(submit) + encode(Abort([2])))
    assert engine.read_config() == CONFIG
    assert engine.wait_readable(1)
    assert engine.read_available() == [submit, Abort([2])]
    assert engine.read_available() == []
    assert not engine.wait_readable(0)
    engine.send(Loading("weights", 1.0))
    assert event_parser().feed(ours.recv(1000)) == [Loading("weights", 1.0)]
    ours.close()
    assert engine.wait_readable(1)
    with pytest.raises(EOFError):
        engine.read_available()
    with pytest.raises(EOFError):
        engine.send(Loading("weights", 1.0))
    engine.close()


def test_a_first_frame_that_is_no_configuration_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        engine = EngineSocket(theirs)
        ours.sendall(encode(Shutdown()))
        with pytest.raises(FrameError, match="not a configuration"):
            engine.read_config()
        engine.close()
