"""The state of a program: what is appended to it, and what came of it."""

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
    """A growing text.

    Appending does not wait: what is appended is worked on in order, on another thread. Reading a
    variable, the text or the messages waits.
    """

    def __init__(self, run: Run) -> None:
        """Begin empty. Programs are given theirs; nobody else makes any."""
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
        """Append a text, a ``gen``, a turn, branches that were joined, or a sum of these.

        Raises:
            LangError: something that was appended before has failed.
        """
        if self._last is not None and self._last.done():
            with self._run.telling():
                self._run.result(self._last)
        for part in parts_of(piece):
            match part:
                case str():
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
        """A turn of the system: ``with s.system(): s += ...``."""
        return self._turn("system")

    def user(self) -> AbstractContextManager[None]:
        """A turn of the user."""
        return self._turn("user")

    def assistant(self) -> AbstractContextManager[None]:
        """A turn of the model."""
        return self._turn("assistant")

    def fork(self, count: int) -> list[State]:
        """Branches that begin with all of this and go their own ways at the same time.

        Raises:
            ValueError: fewer than one.
        """
        if count < 1:
            raise ValueError(f"a state is forked to {count} branches; there must be at least one")
        self._flush()
        forks = [State(self._run) for _ in range(count)]
        if self._last is not None:
            # Done as a step of this state: before what is appended to it next.
            gate = Gate()
            self._then(lambda: self._hand_on(forks, gate))
            self._gates += (gate,)
        for fork in forks:
            fork._variables = self._variables.copy()
            fork._gates, fork._last, fork._role = self._gates, self._last, self._role
        return forks

    # Reading

    def __getitem__(self, name: str) -> str:
        """The text of a ``gen``; waits for it.

        Raises:
            KeyError: there is none of this name.
            LangError: it has failed, or something before it.
        """
        return self.answer(name).text

    def answer(self, name: str) -> Answer:
        """The same with its token ids, why it ended, and what was computed and cached for it."""
        variable = self._variable(name)
        with self._run.telling():
            return variable.answer()

    def text_iter(self, name: str) -> Iterator[str]:
        """The text of a ``gen`` as it comes; piece by piece in a run that was streamed."""
        variable = self._variable(name)
        with self._run.telling():
            yield from variable.pieces()

    async def text_aiter(self, name: str) -> AsyncIterator[str]:
        """The same, awaited."""
        variable = await asyncio.to_thread(self._variable, name)
        with self._run.telling():
            async for piece in variable.pieces_async():
                yield piece

    @property
    def text(self) -> str:
        """All that was appended and generated, without what a chat template writes around it."""
        self.wait()
        return self._transcript.text

    @property
    def branch_text(self) -> str:
        """The text since it was forked."""
        self.wait()
        return self._transcript.text[self._forked_at :]

    @property
    def messages(self) -> list[Message]:
        """The turns so far."""
        self.wait()
        return self._transcript.messages

    @property
    def ids(self) -> list[int]:
        """The token ids so far."""
        self.wait()
        return list(self._transcript.ids)

    @property
    def returned(self) -> object:
        """What the program's function returned."""
        return self._run.returned

    @property
    def error(self) -> BaseException | None:
        """Why the program failed, in a batch."""
        return self._run.error

    def wait(self) -> None:
        """Wait for all that was appended.

        Raises:
            LangError: something has failed.
        """
        self._flush()
        if self._last is not None:
            with self._run.telling():
                self._run.result(self._last)

    # Running

    def perform(self, work: Callable[[], object]) -> None:
        """Let a program's function append to it in this thread; ``error`` says how that ended."""
        self._run.perform(work)

    def end(self, error: BaseException) -> None:
        """End the program: what is under way is cancelled."""
        self._run.over(error)

    # Steps, in the order of appending

    def _then(self, step: Callable[[], Awaitable[None]], variable: Variable | None = None) -> None:
        before = self._last

        async def follow() -> None:
            if before is not None:
                await asyncio.wrap_future(before)
            await step()

        self._last = submit(follow())
        self._run.add(self._last)
        if variable is not None:
            self._last.add_done_callback(lambda done: self._tell(variable, done))

    def _tell(self, variable: Variable, done: Future[None]) -> None:
        """Let those who read a ``gen`` know that it, or something before it, has failed."""
        try:
            self._run.result(done)
        except Exception as error:  # noqa: BLE001 - it is theirs
            reason = error
            soon(lambda: variable.fail(reason))

    def _flush(self) -> None:
        """What was appended since the last step is one segment."""
        text = "".join(self._segment)
        self._segment.clear()
        if text:
            self._then(lambda: self._transcript.say(self._run.server, text))

    @contextmanager
    def _turn(self, role: Role) -> Iterator[None]:
        if self._role is not None:
            raise ValueError(f"a turn of the {role} cannot begin within one of the {self._role}")
        self._flush()
        self._role = role
        self._then(lambda: self._transcript.begin(self._run.server, role))
        yield
        self._flush()
        self._then(lambda: self._transcript.end())
        self._role = None

    def _generate(self, gen: Gen) -> None:
        self._flush()
        variable = self._variables[gen.name] = Variable()
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
        variable.finish(answer)

    async def _hand_on(self, forks: list[State], gate: Gate) -> None:
        gate.prefix = self._transcript.ids.copy()
        for fork in forks:
            fork._transcript = self._transcript.copy()
            fork._forked_at = len(self._transcript.text)

    def _append_joined(self, joined: Joined[State]) -> None:
        self._flush()
        for fork in joined.forks:
            fork._flush()
        ends = [fork._last for fork in joined.forks if fork._last is not None]

        async def say() -> None:
            for end in ends:
                await asyncio.wrap_future(end)
            texts = [fork._transcript.text[fork._forked_at :] for fork in joined.forks]
            text = joined.separator.join(texts)
            if text:
                await self._transcript.say(self._run.server, text)

        self._then(say)

    def _variable(self, name: str) -> Variable:
        found = self._run.wait_for(lambda: self._variables.get(name))
        if found is None and self._run.error is not None:
            raise self._run.error
        if found is None:
            known = ", ".join(map(repr, self._variables)) or "none"
            raise KeyError(f"no gen is named {name!r}; there are: {known}")
        return found
