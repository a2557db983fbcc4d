"""State of a program: its text, and the variables generated in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Self

from gatewayd_lang.answering import answer_to, compute
from gatewayd_lang.errors import GenError, ServerError
from gatewayd_lang.gate import Gate, enter_all
from gatewayd_lang.gen import Gen
from gatewayd_lang.joined import Joined
from gatewayd_lang.loop import soon, submit
from gatewayd_lang.pieces import Piece, parts_of
from gatewayd_lang.roles import Role, Turn
from gatewayd_lang.run import Run
from gatewayd_lang.template import Message
from gatewayd_lang.transcript import Transcript
from gatewayd_lang.variable import Answer, Variable


class State:
    """Growing text.

    Appending does not wait: appended pieces are processed in order, in another thread. Reading a
    variable, the text or the messages waits.
    """

    def __init__(self, run: Run) -> None:
        """Create an empty state; only programs do."""
        self._run = run
        self._transcript = Transcript()
        self._variables: dict[str, Variable] = {}
        self._gates: tuple[Gate, ...] = ()
        self._last: Future[None] | None = None
        self._segment: list[str] = []
        self._role: Role | None = None
        self._forked_at = 0

    # Appending

    def __iadd__(self, piece: Piece) -> Self:
        """Append a text, a ``gen``, a turn, joined branches, or a sum of these.

        Raises:
            LangError: an earlier piece has failed.
        """
        # Raises a known error here, close to its cause, without waiting for pending steps.
        if self._last is not None and self._last.done():
            with self._run.marking_errors_seen():
                self._run.result(self._last)
        for part in parts_of(piece):
            match part:
                case str():
                    # Texts between two steps are encoded together, however the program splits them.
                    self._segment.append(part)
                case Gen():
                    self._generate(part)
                case Turn(role, content):
                    with self._turn(role):
                        self.__iadd__(content)
                case Joined():
                    self._append_joined(part)
                case _:
                    raise TypeError(f"a {type(part).__name__} cannot be appended to a state")
        return self

    def system(self) -> AbstractContextManager[None]:
        """Open a system message: ``with s.system(): s += ...``."""
        return self._turn("system")

    def user(self) -> AbstractContextManager[None]:
        """Open a user message."""
        return self._turn("user")

    def assistant(self) -> AbstractContextManager[None]:
        """Open an assistant message."""
        return self._turn("assistant")

    def fork(self, count: int) -> list[State]:
        """Create branches that continue from here concurrently.

        Raises:
            ValueError: fewer than one.
        """
        if count < 1:
            raise ValueError(f"a state is forked to {count} branches; there must be at least one")
        self._flush()
        forks = [State(self._run) for _ in range(count)]
        if self._last is not None:
            # A step of this state, so that it precedes what is appended next.
            gate = Gate()
            self._then(lambda: self._copy_to_forks(forks, gate))
            self._gates += (gate,)
        for fork in forks:
            # The entries are shared: variables before the fork are readable in all branches.
            fork._variables = self._variables.copy()
            fork._gates, fork._last, fork._role = self._gates, self._last, self._role
        return forks

    # Reading

    def __getitem__(self, name: str) -> str:
        """Return the text of a ``gen``; waits for it.

        Raises:
            KeyError: there is none of this name.
            LangError: it has failed, or something before it.
        """
        return self.answer(name).text

    def answer(self, name: str) -> Answer:
        """Return a ``gen`` with its token ids, finish reason and token counts; waits for it."""
        variable = self._variable(name)
        with self._run.marking_errors_seen():
            return variable.answer()

    def text_iter(self, name: str) -> Iterator[str]:
        """Iterate over the text of a ``gen`` as it is generated.

        In pieces if the run is streamed.
        """
        variable = self._variable(name)
        with self._run.marking_errors_seen():
            yield from variable.pieces()

    async def text_aiter(self, name: str) -> AsyncIterator[str]:
        """Iterate asynchronously, as ``text_iter``."""
        variable = await asyncio.to_thread(self._variable, name)
        with self._run.marking_errors_seen():
            async for piece in variable.pieces_async():
                yield piece

    @property
    def text(self) -> str:
        """Everything appended and generated, without the markup of the chat template."""
        self.wait()
        return self._transcript.text

    @property
    def branch_text(self) -> str:
        """Text since the fork."""
        self.wait()
        return self._transcript.text[self._forked_at :]

    @property
    def messages(self) -> list[Message]:
        """Turns so far."""
        self.wait()
        return self._transcript.messages

    @property
    def ids(self) -> list[int]:
        """Token ids so far."""
        self.wait()
        return list(self._transcript.ids)

    @property
    def returned(self) -> object:
        """Value returned by the program's function."""
        return self._run.returned

    @property
    def error(self) -> BaseException | None:
        """Error that ended the program, for batches."""
        return self._run.error

    def wait(self) -> None:
        """Wait for all appended pieces.

        Raises:
            LangError: something has failed.
        """
        self._flush()
        if self._last is not None:
            with self._run.marking_errors_seen():
                self._run.result(self._last)

    # Running

    def perform(self, work: Callable[[], object]) -> None:
        """Run a program's function in this thread; ``error`` is its outcome."""
        self._run.perform(work)

    def end(self, error: BaseException) -> None:
        """End the program: pending steps are cancelled."""
        self._run.finish(error)

    # Steps, in the order of appending

    def _then(self, step: Callable[[], Awaitable[None]], variable: Variable | None = None) -> None:
        before = self._last

        async def follow() -> None:
            if before is not None:
                # Raises if that step failed, so that all later steps fail with its error.
                await asyncio.wrap_future(before)
            await step()

        self._last = submit(follow())
        self._run.add(self._last)
        if variable is not None:
            self._last.add_done_callback(lambda done: self._fail_variable(variable, done))

    def _fail_variable(self, variable: Variable, done: Future[None]) -> None:
        """Mark a ``gen`` as failed if it, or something before it, has failed."""
        try:
            self._run.result(done)
        except Exception as error:  # noqa: BLE001 - raised to its readers
            reason = error
            soon(lambda: variable.fail(reason))

    def _flush(self) -> None:
        """Append the texts since the last step as one segment."""
        text = "".join(self._segment)
        self._segment.clear()
        if text:
            # Looked up when the step runs: a fork has its copy of the transcript by then.
            self._then(lambda: self._transcript.append_text(self._run.server, text))

    @contextmanager
    def _turn(self, role: Role) -> Iterator[None]:
        if self._role is not None:
            raise ValueError(f"a turn of the {role} cannot begin within one of the {self._role}")
        self._flush()
        self._role = role
        self._then(lambda: self._transcript.open_turn(self._run.server, role))
        yield
        self._flush()
        self._then(lambda: self._transcript.close_turn())
        self._role = None

    def _generate(self, gen: Gen) -> None:
        self._flush()
        variable = self._variables[gen.name] = Variable()
        # Passed once: later requests of this branch begin with more than the prefix.
        gates, self._gates = self._gates, ()
        self._then(lambda: self._answer(gen, variable, gates), variable)

    async def _answer(self, gen: Gen, variable: Variable, gates: tuple[Gate, ...]) -> None:
        ids = self._transcript.ids
        if not ids:
            raise GenError(gen.name, "there is nothing before it; append a text or a turn first")

        server = self._run.server
        await enter_all(gates, partial(compute, gen, server))
        try:
            answer = await answer_to(
                gen, server, ids, stream=self._run.streams, on_text=variable.feed
            )
        except ServerError as error:
            raise GenError(gen.name, error.message, cause=error) from error
        self._transcript.append(answer.text, answer.ids)
        # After the transcript, which a reader of the variable may look at.
        variable.finish(answer)

    async def _copy_to_forks(self, forks: list[State], gate: Gate) -> None:
        gate.prefix = self._transcript.ids.copy()
        for fork in forks:
            fork._transcript = self._transcript.copy()
            fork._forked_at = len(self._transcript.text)

    def _append_joined(self, joined: Joined[State]) -> None:
        self._flush()
        # Texts appended to branches become steps now, in this thread.
        for fork in joined.forks:
            fork._flush()
        ends = [fork._last for fork in joined.forks if fork._last is not None]

        async def append_texts() -> None:
            for end in ends:
                await asyncio.wrap_future(end)
            texts = [fork._transcript.text[fork._forked_at :] for fork in joined.forks]
            text = joined.separator.join(texts)
            if text:
                await self._transcript.append_text(self._run.server, text)

        self._then(append_texts)

    def _variable(self, name: str) -> Variable:
        found = self._run.wait_for(lambda: self._variables.get(name))
        if found is None and self._run.error is not None:
            raise self._run.error
        if found is None:
            known = ", ".join(map(repr, self._variables)) or "none"
            raise KeyError(f"no gen is named {name!r}; there are: {known}")
        return found
