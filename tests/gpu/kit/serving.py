"""A daemon on the device and one on the CPU are asked the same: they should answer alike.

python -m tests.gpu.kit.serving cuda
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

QUESTIONS = "What does shutil.copytree do?\nGive me a JSON object with the keys name and age.\n"
_READY_SECONDS = 120.0
_ANSWER_SECONDS = 30.0


def start(device: str, folder: Path, stack: ExitStack) -> str:
    """Start a daemon that ends with the stack; gives its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sizes = {} if device == "cpu" else {"GATEWAYD_ENGINE__KV_MEMORY": "2GiB"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gatewayd", "serve", "--device", device, "--port", str(port)],
        env={**os.environ, **sizes, "GATEWAYD_STORE__PATH": str(folder / device)},
        stdout=subprocess.DEVNULL,
        stderr=None if device != "cpu" else subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    return f"http://127.0.0.1:{port}"


def wait_for(url: str) -> None:
    """Wait until a daemon is ready.

    Raises:
        TimeoutError: it is not.
    """
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=2):
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} is not ready: {error}") from None
            time.sleep(0.1)


def answers(url: str) -> str:
    """What it answers, by the command line's own client."""
    done = subprocess.run(
        [sys.executable, "-m", "gatewayd", "chat", "--url", url, "--temperature", "0"],
        input=QUESTIONS,
        capture_output=True,
        text=True,
        timeout=_ANSWER_SECONDS,
        check=True,
    )
    return done.stdout


def main(device: str) -> int:
    """Ask both and compare; other answers are said, and are no failure."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # On a CPU the same daemon answers twice.
        urls = [start(one, folder, stack) for one in dict.fromkeys((device, "cpu"))]
        for url in urls:
            wait_for(url)
        texts = [answers(url) for url in (urls[0], urls[-1])]
    for name, text in zip((device, "cpu"), texts, strict=True):
        print(f"--- {name}\n{text}")
    print("the same text" if texts[0] == texts[1] else "OTHER text")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
