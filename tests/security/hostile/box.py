"""Real daemon with a tenant per neighbour, and its resource usage."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from gatewayd.admin.client import call
from tests.daemon.conftest import Running, popen

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
_BEGIN_SECONDS = 60
SECONDS = float(os.environ.get("GATEWAYD_HOSTILE_SECONDS", "0"))
"""Of all neighbours together; 0 for the short run, whose bounds leave room for a busy machine."""
IS_LONG = SECONDS > 0
_TICKS = os.sysconf("SC_CLK_TCK")

USUAL = {"requests_per_minute": 120, "tokens_per_minute": 20_000, "concurrency": 8}
"""What a careful operator promises to strangers."""

TENANTS: Mapping[str, Mapping[str, object]] = {
    "good": {},
    "leaver": {**USUAL, "tokens_per_minute": 3000, "concurrency": 1},
    "slow": {"requests_per_minute": 3},
    "single": {"requests_per_minute": 1},
    "reader": USUAL,
    "flood": USUAL,
    "refused": USUAL,
    "bomber": USUAL,
    "ender": USUAL,
    "filler": {},
    "chainer": USUAL,
    "unlimited": {},
}
"""By name: its terms."""

SETTINGS = {
    "GATEWAYD_SCHEDULER__STRATEGY": "fair",
    # Chains are kept, and half of it is reserved: a second attack of the long run must fit.
    "GATEWAYD_STORE__BYTES": "1GiB" if IS_LONG else "256MiB",
    "GATEWAYD_STORE__FREE_BYTES": "0",
    "GATEWAYD_LOG__FORMAT": "json",
}


class Held(NamedTuple):
    """What the daemon's process has.

    Attributes:
        rss: resident bytes.
        descriptors: open ones.
        log_bytes: that it has written to its log.
        cpu_seconds: that it has used.
    """

    rss: int
    descriptors: int
    log_bytes: int
    cpu_seconds: float


@dataclass
class Box:
    """A daemon and its tenants.

    Attributes:
        daemon: its process.
        socket: of its admin API.
        keys: secrets by tenant.
    """

    daemon: Running
    socket: str
    keys: dict[str, str]

    @property
    def port(self) -> int:
        """Of the API."""
        return int(self.daemon.url.rpartition(":")[2])

    def ask(self, method: str, route: str, body: object = None) -> Any:
        """What an operator is told."""
        return call(self.socket, method, route, body)

    def held(self) -> Held:
        """What it has of the machine now."""
        proc = Path(f"/proc/{self.daemon.process.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        fields = (proc / "stat").read_text().rpartition(")")[2].split()
        return Held(
            pages * os.sysconf("SC_PAGE_SIZE"),
            len(os.listdir(proc / "fd")),
            self.daemon.log.stat().st_size,
            (int(fields[11]) + int(fields[12])) / _TICKS,
        )

    def usage(self, tenant: str) -> dict[str, Any]:
        """Sums of what a tenant was charged for."""
        rows = [row for row in self.ask("GET", "/admin/usage") if row["tenant"] == tenant]
        sums: Counter[str] = Counter()
        for row in rows:
            sums.update({k: v for k, v in row.items() if isinstance(v, int | float)})
        return dict(sums)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        key = {"authorization": f"Bearer {self.keys['metrics']}"}
        text = httpx.get(f"{self.daemon.url}/metrics", headers=key, timeout=30).text
        found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def client(self, tenant: str) -> httpx.AsyncClient:
        """With a tenant's key."""
        return httpx.AsyncClient(
            base_url=self.daemon.url,
            headers={"authorization": f"Bearer {self.keys[tenant]}"},
            timeout=60,
        )

    @asynccontextmanager
    async def beside(
        self,
        groups: Sequence[Sequence[str]],
        scale: float = 1.0,
        seconds: float = 600.0,
        **other_keys: str,
    ) -> AsyncIterator[list[asyncio.subprocess.Process]]:
        """Neighbours while the block lasts, a process for each group; all have attacked already.

        Raises:
            AssertionError: one of them has not, or has failed.
        """
        keys = self.keys | other_keys
        for tenant in ("ender", "filler"):
            await self._delete_files(tenant)
        processes = [await self._let_loose(names, seconds, scale, keys) for names in groups]
        try:
            for process in processes:
                await _attacks(process)
            yield processes
            for process in processes:
                if process.returncode is None:
                    process.terminate()
                await process.communicate()
                assert process.returncode == 0, "a neighbour has failed"
        finally:
            for process in processes:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def _delete_files(self, tenant: str) -> None:
        """Of an earlier attack, or there is no room for another one."""
        async with self.client(tenant) as http:
            for file in (await http.get("/v1/files")).json()["data"]:
                await http.delete(f"/v1/files/{file['id']}")

    async def _let_loose(
        self, names: Sequence[str], seconds: float, scale: float, keys: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.security.hostile.neighbours", *names),
            *("--port", str(self.port), "--keys", json.dumps(keys)),
            *("--seconds", str(seconds), "--scale", str(scale)),
            *(["--is-idle"] if IS_LONG else []),
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )


async def _attacks(process: asyncio.subprocess.Process) -> None:
    """Wait until all neighbours of a process have attacked."""
    assert process.stdout is not None
    async with asyncio.timeout(_BEGIN_SECONDS):
        line = await process.stdout.readline()
    assert line == b"begun\n", "a neighbour has attacked nobody"


@contextmanager
def box(folder: Path, **settings: str) -> Iterator[Box]:
    """A daemon on the embedded model, with all tenants; it must end well."""
    socket, log = str(folder / "admin.sock"), folder / "log"
    env = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "GATEWAYD_ADMIN__SOCKET": socket,
        **SETTINGS,
        **settings,
    }
    process = popen(("-m", "gatewayd", "serve", "--port", "0"), env, log)
    try:
        daemon = Running(process, log)
        daemon.wait_ready()
        made = Box(daemon, socket, {})
        for tenant, terms in TENANTS.items():
            made.ask("POST", "/admin/tenants", {"tenant": tenant, "terms": terms})
            made.keys[tenant] = made.ask("POST", "/admin/keys", {"tenant": tenant})["secret"]
        body = {"tenant": "good", "scopes": ["metrics:read"]}
        made.keys["metrics"] = made.ask("POST", "/admin/keys", body)["secret"]
        yield made
        assert daemon.stop(seconds=40) == 0
    finally:
        process.kill()
        process.wait()
