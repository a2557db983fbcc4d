"""Files over a real port: openai's client, all form encodings, durability."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import FileDeleted, FileObject

from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.resources.files import records
from gatewayd.resources.files.content_store import ContentStore
from gatewayd.resources.files.records import FileRow
from gatewayd.store.ids import new_id
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import Gateway, running
from tests.gatewayd.store_fixtures import copy_of, opened


@pytest.fixture
def folder(fresh_store: Path, tmp_path: Path) -> Path:
    return copy_of(fresh_store, tmp_path / "store")


@asynccontextmanager
async def serving(
    text: TextModel, folder: Path, edge: EdgeLimits | None = None, **tables: Any
) -> AsyncIterator[Gateway]:
    with opened(folder, **tables) as durable:
        async with running(
            text, FakeFleet(), durable=durable, edge=edge, only_local_hosts=True
        ) as gateway:
            yield gateway


@pytest.fixture
async def gateway(text: TextModel, folder: Path) -> AsyncIterator[Gateway]:
    async with serving(text, folder, files={"bytes": 100_000}) as served:
        yield served


async def test_a_file_comes_back_as_it_was_sent(gateway: Gateway) -> None:
    content = os.urandom(70_000)
    made = await gateway.openai.files.create(
        file=("päper.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert isinstance(made, FileObject)
    assert (made.bytes, made.filename, made.purpose) == (70_000, "päper.jsonl", "batch")
    assert made.status == "processed"
    assert made.expires_at == made.created_at + 3600
    assert await gateway.openai.files.retrieve(made.id) == made
    answer = await gateway.openai.files.content(made.id)
    assert answer.read() == content
    assert answer.response.headers["content-disposition"].endswith("p%C3%A4per.jsonl")
    gone = await gateway.openai.files.delete(made.id)
    assert gone == FileDeleted(id=made.id, object="file", deleted=True)
    for call in (gateway.openai.files.retrieve, gateway.openai.files.content):
        with pytest.raises(openai.NotFoundError) as caught:
            await call(made.id)
        assert caught.value.param == "file_id"


async def test_an_empty_file_is_a_file(gateway: Gateway) -> None:
    made = await gateway.openai.files.create(file=("e", b""), purpose="user_data")
    assert made.bytes == 0
    assert (await gateway.openai.files.content(made.id)).read() == b""


async def test_lists_are_paged_in_both_orders_and_filtered(gateway: Gateway) -> None:
    files = gateway.openai.files
    ids = [(await files.create(file=(str(n), b"x"), purpose="batch")).id for n in range(5)]
    other = await files.create(file=("o", b"x"), purpose="user_data")
    newest_first = [one.id async for one in files.list(limit=2, purpose="batch")]
    assert newest_first == ids[::-1]
    assert [one.id async for one in files.list(limit=2, order="asc")] == [*ids, other.id]
    page = await files.list(limit=2, after=ids[1], order="asc")
    assert ([one.id for one in page.data], page.has_more) == (ids[2:4], True)
    last = await files.list(limit=2, after=ids[3], order="asc")
    assert ([one.id for one in last.data], last.has_more) == ([ids[4], other.id], False)


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=x", "limit"), ("limit=10001", "limit"), ("order=up", "order")],
)
async def test_a_wrong_page_is_named(gateway: Gateway, query: str, param: str) -> None:
    answer = await gateway.http.get(f"/v1/files?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def post(gateway: Gateway, **form: Any) -> httpx.Response:
    return await gateway.http.post("/v1/files", **form)


FILE = {"file": ("f", b"x")}


@pytest.mark.parametrize(
    ("form", "status", "param"),
    [
        ({"files": FILE}, 400, "purpose"),
        ({"files": FILE, "data": {"purpose": "fine-tune"}}, 400, "purpose"),
        ({"files": {"other": b"x"}, "data": {"purpose": "batch"}}, 400, "file"),
        ({"files": [("file", b"x"), ("file", b"y")], "data": {"purpose": "batch"}}, 400, "file"),
        ({"files": {"file": b"x" * 100_001}, "data": {"purpose": "batch"}}, 413, "file"),
        ({"files": {"file": b"x" * 9_000_000}, "data": {"purpose": "batch"}}, 413, "file"),
        ({"files": FILE, "data": {"purpose": "batch", "long": "x" * 20_000}}, 400, "long"),
        *(
            (
                {
                    "files": FILE,
                    "data": {
                        "purpose": "batch",
                        "expires_after[anchor]": "created_at",
                        "expires_after[seconds]": seconds,
                    },
                },
                400,
                "expires_after",
            )
            for seconds in ("10", "2592001", "000000003600999999", "000000003600" + "9" * 5000)
        ),
        ({"json": {"purpose": "batch"}}, 415, None),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 415, None),
        (
            {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}},
            400,
            None,
        ),
        (
            {
                "content": b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nto be c',
                "headers": {"content-type": "multipart/form-data; boundary=b"},
            },
            400,
            None,
        ),
    ],
)
async def test_a_wrong_form_is_one_clear_error_and_leaves_nothing(
    gateway: Gateway, folder: Path, form: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await post(gateway, **form)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert list((folder / "files").iterdir()) == []
    assert (await gateway.http.get("/v1/files")).json()["data"] == []


async def test_fields_that_nobody_knows_are_told(gateway: Gateway) -> None:
    answer = await post(gateway, files=FILE, data={"purpose": "batch", "colour": "red"})
    assert answer.headers["x-gateway-ignored-params"] == "colour"


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://evil.example", 403), ("null", 403), ("http://localhost:3000", 200)],
)
async def test_a_foreign_page_cannot_fill_the_disk(
    gateway: Gateway, origin: str, status: int
) -> None:
    answer = await post(gateway, files=FILE, data={"purpose": "batch"}, headers={"origin": origin})
    assert answer.status_code == status


async def test_a_large_file_goes_to_the_disk_and_not_through_memory(
    text: TextModel, folder: Path
) -> None:
    piece, pieces = os.urandom(1 << 20), 80
    head = (
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="big"\r\n\r\n'
    )
    tail = b"\r\n--b--\r\n"

    async def body() -> AsyncIterator[bytes]:
        yield head
        for _ in range(pieces):
            yield piece
        yield tail

    async with serving(text, folder) as gateway:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        length = len(head) + pieces * len(piece) + len(tail)
        answer = await gateway.http.post(
            "/v1/files",
            content=body(),
            headers={
                "content-type": "multipart/form-data; boundary=b",
                "content-length": str(length),
            },
        )
        assert answer.status_code == 200, answer.text
        file_id, digest = answer.json()["id"], hashlib.sha256()
        async with gateway.http.stream("GET", f"/v1/files/{file_id}/content") as content:
            async for chunk in content.aiter_bytes():
                digest.update(chunk)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    expected = hashlib.sha256()
    for _ in range(pieces):
        expected.update(piece)
    assert digest.digest() == expected.digest()
    assert grown < 40 * 1024, f"{grown} KiB"


async def test_a_body_that_keeps_coming_has_its_time_anew(text: TextModel, folder: Path) -> None:
    async def body(pieces: int, pause: float) -> AsyncIterator[bytes]:
        yield (
            b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="big"\r\n\r\n'
        )
        for _ in range(pieces):
            await asyncio.sleep(pause)
            yield b"x" * (1 << 20)
        yield b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b"}
    async with serving(text, folder, EdgeLimits(body_seconds=1.0)) as gateway:
        slow = await gateway.http.post("/v1/files", content=body(12, 0.1), headers=headers)
        assert slow.status_code == 200
    async with serving(text, folder, EdgeLimits(body_seconds=0.2)) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n"
            b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        )
        stuck = await reader.read()
        writer.close()
        assert stuck.startswith(b"HTTP/1.1 408 ")
    assert len(list((folder / "files").iterdir())) == 1


async def test_chunks_count_only_where_nothing_comes(text: TextModel, folder: Path) -> None:
    """Of 512 MiB, 8,192 chunks would be 64 KiB each: more than many clients send at once."""

    async def body() -> AsyncIterator[bytes]:
        yield (
            b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="big"\r\n\r\n'
        )
        for _ in range(100):
            yield b"x" * (1 << 16)
        yield b"\r\n--b--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=b"}
    async with serving(text, folder, EdgeLimits(num_chunks=40)) as gateway:
        large = await gateway.http.post("/v1/files", content=body(), headers=headers)
        assert large.status_code == 200, large.text


async def test_a_file_that_is_deleted_between_row_and_content_is_not_there(
    gateway: Gateway, folder: Path
) -> None:
    made = await gateway.openai.files.create(file=("f", b"x"), purpose="batch")
    (folder / "files" / made.id).unlink()
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.files.content(made.id)


async def test_a_client_that_leaves_leaves_nothing(gateway: Gateway, folder: Path) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(
            b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n"
            b"content-type: multipart/form-data; boundary=b\r\n\r\n"
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nsome'
        )
        files = folder / "files"
        while not list(files.iterdir()):
            await asyncio.sleep(0.01)
    while list(files.iterdir()):
        await asyncio.sleep(0.01)


async def test_files_survive_and_what_was_never_finished_is_deleted(
    text: TextModel, folder: Path
) -> None:
    async with serving(text, folder) as gateway:
        made = await gateway.openai.files.create(file=("f", b"kept"), purpose="batch")
    (folder / "files" / "draft-123.part").write_bytes(b"half")
    (folder / "files" / new_id("file-")).write_bytes(b"whole")
    async with serving(text, folder) as gateway:
        assert (await gateway.openai.files.content(made.id)).read() == b"kept"
    assert [entry.name for entry in (folder / "files").iterdir()] == [made.id]


def test_what_the_operator_has_in_the_folder_stays(tmp_path: Path) -> None:
    theirs = {"thesis.pdf", "file-of-tax.ods", "movie.part", "photos"}
    (tmp_path / "photos").mkdir()
    for name in theirs - {"photos"}:
        (tmp_path / name).write_bytes(b"mine")
    vault = ContentStore(tmp_path)
    vault.draft().write(b"half")
    vault.path(new_id("file-")).write_bytes(b"whole")
    assert vault.clean(()) == 2
    assert {entry.name for entry in tmp_path.iterdir()} == theirs


def test_a_content_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    vault = ContentStore(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").write_bytes(b"x")
    vault.remove(["one", "gone", "two"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]


async def test_files_whose_time_is_over_are_deleted(text: TextModel, folder: Path) -> None:
    now = int(time.time())
    with opened(folder) as durable:
        for name, expires_at in (("old", now - 1), ("new", now + 3600), ("kept", None)):
            durable.vault.path(name).write_bytes(b"x")
            row = FileRow(name, now - 10, expires_at, 1, name, "batch")
            await durable.database.write(lambda connection, row=row: records.add(connection, row))  # type: ignore[misc]
    async with serving(text, folder) as gateway:
        while (folder / "files" / "old").exists():
            await asyncio.sleep(0.01)
        assert {one.id async for one in gateway.openai.files.list()} == {"new", "kept"}


async def test_a_full_disk_is_503_and_says_so(
    gateway: Gateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gatewayd.resources.files.content_store import Draft

    def full(self: Draft, data: bytes) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Draft, "write", full)
    answer = await post(gateway, files=FILE, data={"purpose": "batch"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "store_unavailable")
    assert "No space left on device" in error["message"]
    assert list((folder / "files").iterdir()) == []


async def test_methods_that_a_path_does_not_have_are_named(gateway: Gateway) -> None:
    answer = await gateway.http.put("/v1/files")
    assert answer.status_code == 405
    assert {m.strip() for m in answer.headers["allow"].split(",")} == {"GET", "HEAD", "POST"}
