"""``gatewayd chat``: piped and on a terminal, against an echoing server."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from typing import Any

from gatewayd.cli.chat.terminal import printable

PROGRAM = """
import typer
from gatewayd.cli.chat.cli import chat
app = typer.Typer()
app.command()(chat)
app()
"""
COMMAND = [sys.executable, "-c", PROGRAM]


async def piped(text: str, *args: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(text.encode()), 60)
    return process.returncode or 0, out.decode(), err.decode()


async def test_a_pipe_gets_bare_answers_and_the_server_the_whole_history(server: Any) -> None:
    code, out, err = await piped("one\n\ntwo\n", "--url", server.url, "--system", "be brief")
    assert (code, out, err) == (0, "you said: one\nyou said: two\n", "")
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "you said: one"},
        {"role": "user", "content": "two"},
    ]
    assert server.bodies[0]["model"] == "echo"
    assert "temperature" not in server.bodies[0]
    assert "max_tokens" not in server.bodies[0]


async def test_an_answer_cannot_drive_the_terminal(server: Any) -> None:
    _, out, _ = await piped("a\x1b[2Jb\n", "--url", server.url)
    assert out == "you said: a[2Jb\n"


async def test_options_reach_the_server(server: Any) -> None:
    code, out, _ = await piped(
        *("hello\n", "--url", server.url, "--model", "other"),
        *("--temperature", "0.5", "--max-tokens", "8"),
    )
    assert (code, out) == (0, "you said\n")
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("other", 0.5, 8)


async def test_commands_change_the_conversation(server: Any) -> None:
    code, out, _ = await piped(
        "one\n/reset\ntwo\n/system shout\nthree\n/stats\n/exit\nnever\n", "--url", server.url
    )
    assert code == 0
    said = [[message["content"] for message in body["messages"]] for body in server.bodies]
    assert said == [["one"], ["two"], ["shout", "three"]]
    assert out.splitlines()[3].startswith("3 answers, 41 tokens in ")
    assert "context 25 tokens" in out  # 10 of the prompt, 15 of the answer


async def test_an_unknown_command_is_not_sent(server: Any) -> None:
    code, out, err = await piped("/frobnicate\nhello\n", "--url", server.url)
    assert (code, out) == (1, "")
    assert err == "/frobnicate is not a command; /help lists them\n"
    assert server.bodies == []


async def test_a_missing_daemon_is_said_with_what_to_do(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    for args in ((), ("--model", "named")):
        code, out, err = await piped("hello\n", "--url", url, *args)
        assert (code, out) == (1, "")
        assert f"no server answers at {url} (connection refused): start one" in err
        assert "gatewayd serve" in err
        assert "Traceback" not in err


async def test_a_wanted_key_is_said_with_what_to_do(server: Any) -> None:
    server.key = "k"
    code, _, err = await piped("hello\n", "--url", server.url)
    assert code == 1
    assert "--api-key" in err
    code, out, _ = await piped("hello\n", "--url", server.url, "--api-key", "k")
    assert (code, out) == (0, "you said: hello\n")


async def test_a_full_context_names_the_way_out(server: Any) -> None:
    server.context = 30
    code, out, err = await piped(f"short\n{'long' * 10}\n", "--url", server.url)
    assert (code, out) == (1, "you said: short\n")
    assert "/reset starts a new one" in err


class Screen:
    """A terminal with the chat in it."""

    def __init__(self, process: asyncio.subprocess.Process, fd: int) -> None:
        self.process = process
        self.text = ""
        self._fd = fd
        self._arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(fd, self._read)

    @classmethod
    async def open(cls, *args: str) -> Screen:
        outer, inner = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *args, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
        )
        os.close(inner)
        return cls(process, outer)

    def _read(self) -> None:
        try:
            self.text += os.read(self._fd, 65536).decode(errors="replace")
        except OSError:  # the other side is gone
            asyncio.get_running_loop().remove_reader(self._fd)
        self._arrived.set()

    async def sees(self, words: str) -> None:
        async with asyncio.timeout(30):
            while words not in self.text:
                self._arrived.clear()
                await self._arrived.wait()
        self.text = self.text[self.text.index(words) + len(words) :]

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    async def close(self) -> int:
        status = await asyncio.wait_for(self.process.wait(), 30)
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        return status


async def test_a_terminal_shows_answers_figures_and_help(server: Any) -> None:
    server.gap = 0.005
    screen = await Screen.open("--url", server.url)
    await screen.sees("echo at http://127.0.0.1")
    await screen.sees("> ")
    screen.type("hello\n")
    await screen.sees("you said: hello")
    await screen.sees("15 tokens, ")
    await screen.sees("tokens/s")
    screen.type("/help\n")
    await screen.sees("/system TEXT")
    screen.type("/nonsense\n")
    await screen.sees("/nonsense is not a command")
    screen.type("again\n")  # a failure does not end a terminal's chat
    await screen.sees("you said: again")
    await screen.sees("> ")
    screen.type("/exit\n")
    assert await screen.close() == 0


async def test_ctrl_c_stops_the_answer_but_not_the_chat(server: Any) -> None:
    server.gap = 0.05
    screen = await Screen.open("--url", server.url)
    await screen.sees("> ")
    screen.type("a long story that takes its time\n")
    await screen.sees("you said: ")
    screen.process.send_signal(signal.SIGINT)
    await screen.sees("(stopped)")
    await screen.sees("> ")
    server.gap = 0.0
    screen.type("next\n")
    await screen.sees("you said: next")
    await screen.sees("> ")
    screen.type("\x04")
    assert await screen.close() == 0
    kept = server.bodies[1]["messages"][1]["content"]
    assert kept.startswith("you said: ")
    assert len(kept) < len("you said: a long story that takes its time")


def test_text_keeps_its_lines_and_loses_its_controls() -> None:
    assert printable("a\x1b]0;title\x07b\x9b2J\tc\r\nd\x7fé") == "a]0;titleb2J\tc\ndé"
