"""Clients of KServe v2: Triton's gRPC client over a real port of a real daemon."""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from tests.daemon.conftest import Running, nano_daemon

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")

KEY = "gw_test_0123456789"
AUTHORIZED = {"authorization": f"Bearer {KEY}"}
PROMPT = "def add(a, b):"
LIMIT = 64 * 1024
LONG = {"max_tokens": 1500, "ignore_eos": True, "temperature": 0.0}


def environment(**more: str) -> dict[str, str]:
    return {
        "GATEWAYD_SERVER__API_KEY": KEY,
        "GATEWAYD_STORE__PATH": "temporary",
        "GATEWAYD_PROTOCOL__STRATEGIES": '["kserve"]',
        "GATEWAYD_PROTOCOL__KSERVE__PORT": "0",
        "GATEWAYD_PROTOCOL__KSERVE__MESSAGE_BYTES": str(LIMIT),
        **more,
    }


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with nano_daemon(tmp_path_factory.mktemp("kserve"), **environment()) as running:
        yield running


def address(daemon: Running) -> str:
    (found,) = re.findall(r"gRPC API listens on ([0-9.]+:\d+)", daemon.log.read_text())
    return str(found)


@contextmanager
def connected(daemon: Running) -> Iterator[Any]:
    with triton.InferenceServerClient(address(daemon)) as client:
        yield client


@pytest.fixture
def client(daemon: Running) -> Iterator[Any]:
    with connected(daemon) as client:
        yield client


def text(value: str, name: str = "text_input") -> Any:
    tensor = triton.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
    return tensor


def infer(client: Any, prompt: str = PROMPT, *inputs: Any, **options: Any) -> Any:
    asked = {"model_name": "nano", "headers": AUTHORIZED, **options}
    return client.infer(inputs=[text(prompt), *inputs], **asked)


def said(result: Any) -> str:
    (data,) = result.as_numpy("text_output")
    return str(data.decode())


def parameters(result: Any) -> dict[str, Any]:
    given = result.get_response().parameters
    return {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in given.items()}


def completion(daemon: Running, **fields: Any) -> Any:
    body = {"model": "nano", "prompt": PROMPT, **fields}
    return httpx.post(
        f"{daemon.url}/v1/completions", json=body, headers=AUTHORIZED, timeout=30
    ).json()


def running(daemon: Running) -> float:
    page = httpx.get(f"{daemon.url}/metrics", headers=AUTHORIZED, timeout=30).text
    return float(re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", page, re.MULTILINE)[0])


def wait_running(daemon: Running, count: int) -> None:
    deadline = time.monotonic() + 30
    while running(daemon) != count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def failure(code: str, act: Any) -> str:
    with pytest.raises(triton.InferenceServerException) as caught:
        act()
    assert caught.value.status() == f"StatusCode.{code}"
    return str(caught.value.message())


class Stream:
    """A client's stream, whose results arrive in a queue."""

    def __init__(self, client: Any, headers: Any = None) -> None:
        self.results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client = client
        client.start_stream(
            lambda result, error: self.results.put((result, error)), headers=headers or AUTHORIZED
        )

    def send(self, prompt: str = PROMPT, **options: Any) -> None:
        self.client.async_stream_infer("nano", [text(prompt)], **options)

    def next(self) -> tuple[Any, Any]:
        return self.results.get(timeout=30)

    def rest(self) -> list[Any]:
        """The results of a request."""
        found: list[Any] = []
        while not found or "triton_final_response" not in parameters(found[-1]):
            result, error = self.next()
            assert error is None, error
            found.append(result)
        return found


def test_an_answer_is_that_of_a_completion(daemon: Running, client: Any) -> None:
    result = infer(client, parameters={"max_tokens": 12, "temperature": 0.0}, request_id="mine")
    ours = completion(daemon, max_tokens=12, temperature=0)
    response, usage = result.get_response(), ours["usage"]
    assert said(result) == ours["choices"][0]["text"]
    assert (response.id, response.model_name, response.model_version) == ("mine", "nano", "1")
    assert parameters(result) == {
        "finish_reason": "length",
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": 12,
    }


def test_sampling_is_that_of_a_completion(daemon: Running, client: Any) -> None:
    sampling = {"max_tokens": 16, "temperature": 1.5, "top_p": 0.9, "top_k": 50, "seed": 7}
    ours = completion(daemon, **sampling)["choices"][0]["text"]
    assert said(infer(client, parameters=sampling)) == ours
    strings = {name: str(value) for name, value in sampling.items()}
    asked = text(json.dumps(strings), "sampling_parameters")
    assert said(infer(client, PROMPT, asked)) == ours
    assert said(infer(client, PROMPT, asked, parameters={"seed": 8})) != ours
    stop = ours[4:7]
    stopped = infer(client, parameters={**sampling, "stop": stop, "mine": 1, "also": "x"})
    assert said(stopped) == ours[: ours.index(stop)]
    assert parameters(stopped)["finish_reason"] == "stop"
    assert parameters(stopped)["ignored_parameters"] == "also, mine"


def test_a_plain_stub_gets_contents_as_it_sends_them(daemon: Running) -> None:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="nano")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
    tensor.contents.bytes_contents.append(PROMPT.encode())
    request.parameters["max_tokens"].int64_param = 5
    request.parameters["temperature"].double_param = 0
    with grpc.insecure_channel(address(daemon)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        response = stub.ModelInfer(request, metadata=[("x-api-key", KEY)])
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelConfig(service_pb2.ModelConfigRequest(name="nano"))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert (response.model_name, len(response.raw_output_contents)) == ("nano", 0)
    (output,) = response.outputs
    expected = completion(daemon, max_tokens=5, temperature=0)["choices"][0]["text"]
    assert [one.decode() for one in output.contents.bytes_contents] == [expected]


def test_a_stream_has_the_text_of_an_answer(client: Any) -> None:
    asked = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    stream = Stream(client)
    stream.send(parameters=asked, request_id="a", enable_empty_final_response=True)
    stream.send(parameters={**asked, "max_tokens": 4, "stream": False}, request_id="b")
    found, (single,) = stream.rest(), stream.rest()
    client.stop_stream()
    whole = infer(client, parameters=asked)
    assert len(found) > 3
    assert "".join(said(one) for one in found) == said(whole)
    assert {one.get_response().id for one in found} == {"a"}
    last = parameters(found[-1])
    assert (last["finish_reason"], last["completion_tokens"]) == ("length", 40)
    assert all(parameters(one) == {} for one in found[:-1])
    assert single.get_response().id == "b"
    assert said(whole).startswith(said(single))


def test_an_error_in_a_stream_ends_its_request_alone(client: Any) -> None:
    stream = Stream(client)
    stream.send(parameters={"temperature": 7.0})
    result, error = stream.next()
    assert result is None
    assert "temperature is 7" in error.message()
    stream.send(parameters={"max_tokens": 2})
    assert len(stream.rest()) >= 1
    client.stop_stream()


def test_a_cancelled_stream_frees_the_engine(daemon: Running, client: Any) -> None:
    stream = Stream(client)
    stream.send(parameters=LONG)
    assert stream.next()[1] is None
    assert running(daemon) == 1
    client.stop_stream(cancel_requests=True)
    wait_running(daemon, 0)


def test_a_deadline_and_a_lost_connection_cancel_an_answer(daemon: Running, client: Any) -> None:
    failure("DEADLINE_EXCEEDED", lambda: infer(client, parameters=LONG, client_timeout=0.3))
    wait_running(daemon, 0)
    with connected(daemon) as other:
        done: queue.Queue[Any] = queue.Queue()
        other.async_infer(
            *("nano", [text(PROMPT)], lambda result, error: done.put(error)),
            parameters=LONG,
            headers=AUTHORIZED,
        )
        wait_running(daemon, 1)
    wait_running(daemon, 0)
    assert done.get(timeout=10) is not None
    finished = completion(daemon, max_tokens=1)
    assert finished["usage"]["completion_tokens"] == 1


def test_a_key_is_needed_but_for_health(daemon: Running, client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    for headers in ({}, {"authorization": "Bearer wrong-key-000000"}):
        for act in (
            lambda headers=headers: infer(client, headers=headers),
            lambda headers=headers: client.is_model_ready("nano", headers=headers),
            lambda headers=headers: client.get_server_metadata(headers=headers),
        ):
            failure("UNAUTHENTICATED", act)
    stream = Stream(client, {"authorization": "Bearer wrong-key-000000"})
    assert stream.next()[1].status() == "StatusCode.UNAUTHENTICATED"
    client.stop_stream()


def test_models_are_described(client: Any) -> None:
    assert client.is_model_ready("nano", headers=AUTHORIZED)
    assert client.is_model_ready("nano", "1", headers=AUTHORIZED)
    server = client.get_server_metadata(headers=AUTHORIZED)
    assert (server.name, bool(server.version)) == ("gatewayd", True)
    model = client.get_model_metadata("nano", headers=AUTHORIZED)
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [
        ("text_input", "BYTES", [1]),
        ("stream", "BOOL", [1]),
        ("sampling_parameters", "BYTES", [1]),
    ]
    assert [one.name for one in model.outputs] == ["text_output"]
    unnamed = failure("INVALID_ARGUMENT", lambda: client.is_model_ready("", headers=AUTHORIZED))
    assert unnamed == "name is empty; it must be that of a model"
    assert "other" in failure("NOT_FOUND", lambda: infer(client, model_name="other"))
    assert "version '2'" in failure("NOT_FOUND", lambda: infer(client, model_version="2"))


@pytest.mark.parametrize(
    "name",
    [
        *("other", "NANO", " nano", "a b?c=%2e", "nano?name=nano", "é", "\u2028", "nano\x00"),
        # Would be other routes, or "nano", as parts of a path.
        *("nano/ready", "nano/", "nano\n", "/ready", "//", "nano\n/ready", "../livez", "a\nb"),
        "nano" * 5000,
    ],
)
def test_any_name_that_is_not_served_is_not_found(client: Any, name: str) -> None:
    for ask in (client.is_model_ready, client.get_model_metadata):
        said = failure("NOT_FOUND", lambda ask=ask: ask(name, headers=AUTHORIZED))
        assert said == f"there is no model {name[:64]!r}; served are: nano"


def test_bad_requests_name_what_is_wrong(client: Any) -> None:
    number = triton.InferInput("text_input", [1], "INT32")
    number.set_data_from_numpy(np.array([3], dtype=np.int32))
    two = triton.InferInput("text_input", [2], "BYTES")
    two.set_data_from_numpy(np.array([b"a", b"b"], dtype=np.object_))

    def refused(*inputs: Any, code: str = "INVALID_ARGUMENT", **options: Any) -> str:
        return failure(code, lambda: client.infer("nano", inputs, headers=AUTHORIZED, **options))

    assert "text_input has datatype 'INT32'; it must be BYTES" in refused(number)
    assert "text_input has shape [2]" in refused(two)
    assert "inputs[0].name is 'mine'" in refused(text("x", "mine"))
    assert "text_input is missing" in refused(text("{}", "sampling_parameters"))
    assert "temperature is 7" in refused(text("x"), parameters={"temperature": 7.0})
    assert "max_tokens is 'many'" in refused(text("x"), parameters={"max_tokens": "many"})
    assert "max_tokens is 5000" in refused(text("x"), parameters={"max_tokens": 5000})
    assert "ModelStreamInfer" in refused(text("x"), parameters={"stream": True})
    assert "the prompt is empty" in refused(text(""))
    unnamed = failure("INVALID_ARGUMENT", lambda: infer(client, model_name=""))
    assert unnamed == "model_name is empty; it must be that of a served model"
    large = refused(text("x" * LIMIT), code="RESOURCE_EXHAUSTED")
    assert str(LIMIT) in large
    # Compressed it is small.
    refused(text("x" * 40 * LIMIT), code="RESOURCE_EXHAUSTED", compression_algorithm="gzip")


def test_what_sends_nothing_does_not_keep_its_place(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """An open stream, a call without its request, and a connection without calls."""
    env = environment(
        GATEWAYD_PROTOCOL__KSERVE__IDLE_SECONDS="1", GATEWAYD_PROTOCOL__KSERVE__CONCURRENCY="2"
    )
    with (
        nano_daemon(tmp_path_factory.mktemp("idle"), **env) as daemon,
        connected(daemon) as client,
        grpc.insecure_channel(address(daemon)) as channel,
    ):
        released = threading.Event()
        withheld = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer").future(
            iter(released.wait, True), timeout=30
        )
        stream = Stream(client)
        # Longer than the time without requests.
        stream.send(parameters={**LONG, "max_tokens": 1000}, request_id="a")
        began = time.monotonic()
        assert parameters(stream.rest()[-1])["completion_tokens"] == 1000
        stream.send(parameters={"max_tokens": 1}, request_id="b")
        stream.rest()
        error = stream.next()[1]
        assert time.monotonic() - began >= 1
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"
        assert error.message() == withheld.exception(timeout=30).details()
        assert error.message() == "no request was sent for 1 s"
        assert withheld.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        released.set()
        # Both places are free, and a client whose connection was closed opens another one.
        with connected(daemon) as other:
            for _ in range(2):
                assert said(infer(other, parameters={"max_tokens": 2}))
                time.sleep(1.5)


def test_what_is_no_message_is_refused(daemon: Running) -> None:
    service = "/inference.GRPCInferenceService"
    with grpc.insecure_channel(address(daemon)) as channel:
        for call, sent in (
            (channel.unary_unary(f"{service}/ModelInfer"), b"\xff\xff\xff"),
            (channel.stream_unary(f"{service}/ModelReady"), iter([])),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(sent, timeout=30)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream(f"{service}/ModelStreamInfer")(
            iter([b"\xff\xff\xff"]), timeout=30, metadata=[("x-api-key", KEY)]
        )
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not daemon.said("DecodeError")


def test_the_name_selects_one_of_several_models(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Loaded at their first request, in place of the other where memory is for one."""
    env = environment(
        GATEWAYD_CATALOGUE__MEMORY="250MiB",
        GATEWAYD_CATALOGUE__MINIMUM_RESIDENCY_SECONDS="0",
    )
    folder = tmp_path_factory.mktemp("models")
    file = folder / "models.toml"
    names = {"a": "embedded:nano", "b": "embedded:nano-draft"}
    tables = [
        f'[models.{name}]\npath = "{path}"\nmemory = "200MiB"' for name, path in names.items()
    ]
    more = ["preload = false", 'served_names = ["org/b", "a/ready"]']
    file.write_text("\n".join([*tables, *more]))
    asked = {"max_tokens": 12, "temperature": 0.0}
    with (
        nano_daemon(folder, GATEWAYD_CONFIG=str(file), **env) as daemon,
        connected(daemon) as client,
    ):
        # Also the one that is not loaded: its request would load it.
        assert all(client.is_model_ready(name, headers=AUTHORIZED) for name in names)
        found = [
            said(infer(client, model_name=name, parameters=asked)) for name in ("org/b", "a", "b")
        ]
        ours = [
            completion(daemon, model=name, **asked)["choices"][0]["text"] for name in ("b", "a")
        ]
        assert found == [ours[0], ours[1], ours[0]]
        assert ours[0] != ours[1]
        for name in ("org/b", "a/ready"):
            assert client.get_model_metadata(name, headers=AUTHORIZED).name == name
        assert client.is_server_ready()


def test_many_clients_are_answered_at_once(daemon: Running) -> None:
    """Each by its own answer."""
    prompts = [f"def f{at}(x):" for at in range(12)]
    found: dict[str, str] = {}

    def ask(prompt: str) -> None:
        with connected(daemon) as client:
            asked = {"max_tokens": 8, "temperature": 0.0}
            found[prompt] = said(infer(client, prompt, parameters=asked))

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for prompt in prompts:
        ours = completion(daemon, prompt=prompt, max_tokens=8, temperature=0)
        assert found[prompt] == ours["choices"][0]["text"]
