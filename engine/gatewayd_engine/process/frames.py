"""Frames between the daemon and an engine: a 4-byte little-endian length, then msgpack.

Both sides use this module. ``FrameParser`` turns any cut of the byte stream into messages,
``encode`` makes a frame, ``EngineSocket`` is the engine's blocking end. Imports no torch.
"""

from __future__ import annotations

import select
import socket
import struct
from typing import Final, Generic, TypeVar

import msgspec

from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.messages import MAX_FRAME_BYTES, Command, Event

MessageT = TypeVar("MessageT")

_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 256 * 1024

_encoder: Final = msgspec.msgpack.Encoder()
_configs: Final = msgspec.msgpack.Decoder(EngineConfig)
_commands: Final[msgspec.msgpack.Decoder[Command]] = msgspec.msgpack.Decoder(Command)
_events: Final[msgspec.msgpack.Decoder[Event]] = msgspec.msgpack.Decoder(Event)


class FrameError(Exception):
    """Invalid data on the stream: not a frame, or not a message of the other side.

    The stream is out of sync: close it.
    """


def encode(message: Command | Event | EngineConfig) -> bytes:
    """Encode a message as one frame.

    Raises:
        FrameError: the message is larger than a frame may be.
    """
    frame = bytearray(_LENGTH.size)
    _encoder.encode_into(message, frame, _LENGTH.size)
    size = len(frame) - _LENGTH.size
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {size} bytes; a frame holds {MAX_FRAME_BYTES}")
    _LENGTH.pack_into(frame, 0, size)
    return bytes(frame)


class FrameParser(Generic[MessageT]):
    """Incremental parser of frames; buffers an incomplete frame."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._decoder = decoder
        self._rest = bytearray()
        self._wanted = 0  # length of ``_rest`` below which it holds no whole frame

    @property
    def num_pending_bytes(self) -> int:
        """Number of buffered bytes of an incomplete frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[MessageT]:
        """Parse the next bytes; return the completed messages, in order.

        Raises:
            FrameError: an oversized or malformed frame; messages before it are lost.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:  # a large frame is not copied at each piece
                return []
            # Copied, because a bytearray cannot be resized while views of it exist.
            data = bytes(self._rest)
            self._rest.clear()
        messages = []
        view = memoryview(data)
        at, end = 0, len(data)
        self._wanted = 0
        while end - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, at)
            # Before the body arrives: a broken peer must not make this process buffer gigabytes.
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {size} bytes; the limit is {MAX_FRAME_BYTES}")
            start = at + _LENGTH.size
            if end - start < size:
                self._wanted = _LENGTH.size + size
                break
            messages.append(self._decode(view[start : start + size]))
            at = start + size
        if at < end:
            # Only the incomplete frame is copied.
            self._rest += view[at:]
        return messages

    def _decode(self, body: memoryview) -> MessageT:
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a frame of {len(body)} bytes is not a message: {error}") from error


def event_parser() -> FrameParser[Event]:
    """Return a parser of an engine's events."""
    return FrameParser(_events)


class EngineSocket:
    """The engine's end of the stream: one configuration in, then commands in and events out.

    Only the engine's main loop uses it. ``send`` blocks while the daemon does not read, which
    slows the engine instead of filling memory; the daemon never blocks, so both cannot wait
    for each other.
    """

    def __init__(self, stream: socket.socket) -> None:
        # ``send`` blocks; ``read_available`` asks for a single read that does not.
        stream.setblocking(True)
        self._socket = stream
        self._parser = FrameParser(_commands)
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)

    @classmethod
    def from_fd(cls, fd: int) -> EngineSocket:
        """Take over an inherited descriptor."""
        return cls(socket.socket(fileno=fd))

    def read_config(self) -> EngineConfig:
        """Wait for the first frame.

        Raises:
            EOFError: the daemon has closed the stream.
            FrameError: the frame is not a configuration.
        """
        # Exactly one frame is read: commands may follow at once, and belong to the parser.
        (size,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size))
        if size > MAX_FRAME_BYTES:
            raise FrameError(f"a frame of {size} bytes; the limit is {MAX_FRAME_BYTES}")
        body = self._read_exactly(size)
        try:
            return _configs.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"the first frame is not a configuration: {error}") from error

    def read_available(self) -> list[Command]:
        """Return the commands that have arrived, without waiting.

        Raises:
            EOFError: the daemon has closed the stream; commands before the end are discarded,
                because there is no one to answer.
            FrameError: the stream is broken.
        """
        commands: list[Command] = []
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return commands
            except ConnectionError as error:
                raise EOFError("the daemon has closed the stream") from error
            if not data:
                raise EOFError("the daemon has closed the stream")
            commands += self._parser.feed(data)
            if len(data) < _READ_BYTES:  # drained; later data is for the next step
                return commands

    def wait_readable(self, timeout: float) -> bool:
        """Wait until data (or the end of the stream) has arrived, up to ``timeout`` seconds."""
        return bool(self._poll.poll(timeout * 1000))

    def send(self, event: Event) -> None:
        """Send one event.

        Raises:
            EOFError: the daemon has closed the stream.
            FrameError: the event is larger than a frame; nothing was sent.
        """
        try:
            self._socket.sendall(encode(event))
        except ConnectionError as error:
            raise EOFError("the daemon has closed the stream") from error

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError as error:
                raise EOFError("the daemon has closed the stream") from error
            if not part:
                raise EOFError("the daemon has closed the stream")
            data += part
        return bytes(data)
