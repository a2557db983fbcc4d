"""A Hub on a port of this machine: the part of its protocol that pulls use, and its faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LFS = (".safetensors", ".gguf", "tokenizer.json", ".bin")
PIECE = 4096


def git_digest(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class FakeRepo:
    """A repository.

    Attributes:
        files: contents by name.
        revisions: commits by branch or tag.
        gone: commits that were deleted.
        gated: whether its files need the token.
        listed_sizes: sizes that are listed instead of the right ones.
        served: contents that are sent instead of the right ones.
        headers: that are sent for a file instead of the right ones.
    """

    files: dict[str, bytes]
    revisions: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    gated: str = ""
    listed_sizes: dict[str, int] = field(default_factory=dict)
    served: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.revisions.setdefault("main", self.commit)

    @property
    def commit(self) -> str:
        """Commit of the files as they are now."""
        state = sorted((name, git_digest(content)) for name, content in self.files.items())
        return hashlib.sha1(repr(state).encode()).hexdigest()

    def change(self, files: dict[str, bytes]) -> None:
        """Commit other contents to main."""
        self.files |= files
        self.revisions["main"] = self.commit

    def listing(self, commit: str, repo: str) -> dict[str, object]:
        siblings = []
        for name, content in self.files.items():
            size = self.listed_sizes.get(name, len(content))
            one: dict[str, object] = {
                "rfilename": name,
                "size": size,
                "blobId": git_digest(content),
            }
            if name.endswith(LFS):
                sha256 = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 134}
            siblings.append(one)
        return {"id": repo, "sha": commit, "siblings": siblings}


class HubRequest(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]


class FakeHub:
    """Serves repositories.

    Attributes:
        url, cdn: of the server, and of that for large files, which is the same.
        repos: by name.
        requests: received, in order.
        cuts: for each name of a file, after how many bytes its next answers are cut.
        moved: addresses to which paths are redirected.
        busy: for each beginning of a path, the ``retry-after`` of its next answers, which are 429.
        open: while it is not set, answers stop after the first piece of a file.
    """

    def __init__(self) -> None:
        self.repos: dict[str, FakeRepo] = {}
        self.requests: list[HubRequest] = []
        self.cuts: defaultdict[str, list[int]] = defaultdict(list)
        self.moved: dict[str, str] = {}
        self.busy: defaultdict[str, list[str]] = defaultdict(list)
        self.open = threading.Event()
        self.open.set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        port = self._server.server_address[1]
        self.url, self.cdn = f"http://127.0.0.1:{port}", f"http://localhost:{port}"

    @contextmanager
    def running(self) -> Iterator[FakeHub]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.open.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def fetched(self) -> list[str]:
        """Names of the files whose content was asked for, once for each answer."""
        gets = [path.split("/") for method, path, _ in self.requests if method == "GET"]
        # /ORG/NAME/resolve/COMMIT/FILE, unless that redirects to /cdn/ORG/NAME/FILE
        found = [p[5:] if p[3] == "resolve" else p[4:] for p in gets if p[1] != "api"]
        redirected = [p[3] == "resolve" and p[-1].endswith(LFS) for p in gets if p[1] != "api"]
        return ["/".join(p) for p, is_not in zip(found, redirected, strict=True) if not is_not]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: FakeHub

    def handle_error(self, *_: object) -> None:
        """Clients may disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.requests.append(HubRequest(self.command, path, headers))
        for beginning, waits in hub.busy.items():
            if waits and path.startswith(beginning):
                self._send(429, {"Retry-After": waits.pop(0)}, b"slow down")
                return
        if path in hub.moved:
            self._send(307, {"Location": hub.moved[path]}, b"")
            return
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "revision":
            self._list("/".join(parts[2:4]), "/".join(parts[5:]))
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        elif parts[0] == "cdn":
            repo = hub.repos["/".join(parts[1:3])]
            self._content(repo, "/".join(parts[3:]), {})
        else:
            self._send(404, {}, b"no such route")

    def _list(self, name: str, revision: str) -> None:
        found = self._found(name, revision)
        if found is not None:
            repo, commit = found
            self._send(200, {}, json.dumps(repo.listing(commit, name)).encode())

    def _resolve(self, name: str, revision: str, file: str) -> None:
        found = self._found(name, revision)
        if found is None:
            return
        repo, commit = found
        authorization = self.headers.get("authorization", "")
        if repo.gated and authorization != f"Bearer {repo.gated}":
            self._send(403, {"X-Error-Code": "GatedRepo"}, b"accept the terms")
        elif file not in repo.files:
            missing = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}
            self._send(404, missing, b"no such file")
        elif file.endswith(LFS):
            content = repo.files[file]
            linked = {
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Linked-Size": str(repo.listed_sizes.get(file, len(content))),
                # By another name, as the Hub's: a client does not send the token there.
                "Location": f"{self.server.hub.cdn}/cdn/{name}/{file}",
            }
            linked |= repo.headers.get(file, {})
            self._send(302, linked, b"")
        else:
            etag = f'"{git_digest(repo.files[file])}"'
            headers = {"X-Repo-Commit": commit, "ETag": etag}
            self._content(repo, file, headers | repo.headers.get(file, {}))

    def _found(self, name: str, revision: str) -> tuple[FakeRepo, str] | None:
        repo = self.server.hub.repos.get(name)
        if repo is None:
            self._send(401, {"X-Error-Code": "RepoNotFound"}, b"no such repository")
            return None
        commit = repo.revisions.get(revision, revision)
        if commit not in repo.revisions.values() or commit in repo.gone:
            self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"no such revision")
            return None
        return repo, commit

    def _content(self, repo: FakeRepo, file: str, headers: dict[str, str]) -> None:
        content = repo.served.get(file, repo.files[file])
        begin, status = 0, 200
        asked = self.headers.get("range", "")
        if asked:
            begin, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        cuts = self.server.hub.cuts[file] if self.command == "GET" else []
        end = begin + cuts.pop(0) if cuts else len(content)
        self._send(status, headers, content[begin:], num_sent=end - begin)

    def _send(
        self, status: int, headers: Mapping[str, str], body: bytes, num_sent: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = body if num_sent is None else body[:num_sent]
        try:
            for at in range(0, len(sent), PIECE):
                if at:
                    self.server.hub.open.wait()
                self.wfile.write(sent[at : at + PIECE])
        except OSError:
            self.close_connection = True
        if len(sent) < len(body):
            self.close_connection = True
