"""Terminal interface of the chat; with piped input only the answers are printed."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console

from gatewayd.cli.chat.conversation import ChatTurn, Conversation
from gatewayd.cli.client.api import ApiError

HELP = """\
/reset         clear the conversation
/system TEXT   set the system message and start over; without TEXT, remove it
/stats         tokens and speed so far
/help          show this list
/exit          exit, as the end of the input does
Ctrl-C         stop an answer"""

CONTEXT_FULL = {"context_length_exceeded", "exceed_context_size_error"}

# Model output must not control the terminal: all control characters but these are removed.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    r"""Remove control characters: ``printable("a\x1b[2Jb\n") == "a[2Jb\n"``."""
    return text.translate(_CONTROLS)


class Terminal:
    """Loop that reads user input, runs commands and streams answers."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.is_interactive = sys.stdin.isatty()
        self._out = Console(highlight=False, markup=False)
        self._err = Console(stderr=True, highlight=False, markup=False)
        self._failed = False

    def run(self) -> int:
        """Run until the end of the input or ``/exit``; return the exit status.

        If stdin is not a terminal, stop at the first failure with status 1.
        """
        if self.is_interactive:
            _enable_line_editing()
            model = self.conversation.settings.model
            self._out.print(f"{model} at {self.conversation.settings.url}; /help", style="dim")
        # The runner turns Ctrl-C into a cancellation of the answer, then into KeyboardInterrupt.
        with asyncio.Runner() as runner:
            while (line := self._read()) is not None:
                if line.startswith("/"):
                    if not self._command(line):
                        break
                elif line:
                    self._answer(runner, line)
                if self._failed and not self.is_interactive:
                    return 1
        return 0

    def _read(self) -> str | None:
        try:
            return input("> " if self.is_interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            if self.is_interactive:
                self._out.print()
            return None

    def _answer(self, runner: asyncio.Runner, text: str) -> None:
        try:
            turn = runner.run(
                self.conversation.ask(text, lambda piece: self._out.out(printable(piece), end=""))
            )
        except KeyboardInterrupt:
            self._out.print("\n(stopped)", style="dim")
        except ApiError as error:
            self._fail(explain(error, self.conversation.settings.url))
        else:
            self._out.print()
            if self.is_interactive:
                self._out.print(figures(turn), style="dim")

    def _command(self, line: str) -> bool:
        """Run a command; False ends the chat."""
        name, _, rest = line.partition(" ")
        match name:
            case "/exit" | "/quit":
                return False
            case "/help":
                self._out.print(HELP)
            case "/reset":
                self.conversation.reset()
                self._say("conversation cleared")
            case "/system":
                self.conversation.system = rest.strip() or None
                self.conversation.reset()
                self._say("system message set" if rest.strip() else "system message removed")
            case "/stats":
                self._out.print(totals(self.conversation), soft_wrap=True)
            case _:
                self._fail(f"{name} is not a command; /help lists them")
        return True

    def _say(self, text: str) -> None:
        if self.is_interactive:
            self._out.print(text, style="dim")

    def _fail(self, text: str) -> None:
        self._failed = True
        self._err.print(text, style="red", soft_wrap=True)


def explain(error: ApiError, url: str) -> str:
    """Describe an error and its remedy in a sentence or two."""
    if error.code == "connection":
        return (
            f"no server answers at {url} ({error.message}): "
            "start one with `gatewayd serve`, or name another with --url"
        )
    if error.code in CONTEXT_FULL:
        return (
            "the conversation no longer fits the model's context: "
            f"/reset starts a new one ({error.message})"
        )
    if error.status == 401:
        return f"the server requires an API key: give it with --api-key ({error.message})"
    return f"{error.message} ({error.code})"


def figures(turn: ChatTurn) -> str:
    """Format the speed of an answer as a line."""
    cut = "; cut off at the token limit" if turn.finish_reason == "length" else ""
    return (
        f"{turn.output_tokens} tokens, {turn.first_seconds * 1000:.0f} ms to the first, "
        f"{turn.tokens_per_second:.0f} tokens/s{cut}"
    )


def totals(conversation: Conversation) -> str:
    """Format the totals of a conversation as a line."""
    turns = conversation.turns
    output = sum(turn.output_tokens for turn in turns)
    seconds = sum(turn.seconds for turn in turns)
    last = turns[-1] if turns else None
    context = (
        f"; context {last.prompt_tokens + last.output_tokens} tokens, "
        f"{last.cached_tokens} of the last prompt cached"
        if last and conversation.messages
        else ""
    )
    rate = output / seconds if seconds else 0.0
    return f"{len(turns)} answers, {output} tokens in {seconds:.1f} s ({rate:.0f}/s){context}"


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401 - the import enables line editing in input()
    except ImportError:
        return  # Windows: the console edits lines itself
