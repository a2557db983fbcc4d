"""Source code bans: classes of advisories closed by absent code."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
ROOTS = ("gatewayd", "engine", "lang", "migrations", "plugins", "tui")
LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
"""Modules whose data can be code."""
SENDERS = {"urllib.request", "http.client", "aiohttp", "httpx", "requests", "ftplib", "smtplib"}
"""Modules that ask somebody else."""
CLIENTS = re.compile(r"gatewayd/(client|chat|bench|cli|admin/client)|lang/|tui/")
"""Rooms that are clients themselves: run by a person, not by a request."""
UPSTREAMS = re.compile(r"gatewayd/upstreams/(client|fleet|response)\.py")
"""Clients of the servers that the configuration names; see ``test_requests_name_no_server``."""


@functools.cache
def trees(*roots: str) -> dict[str, ast.Module]:
    """What is shipped, by path."""
    if roots:
        return {path: tree for path, tree in trees().items() if path.startswith(roots)}
    return {
        file.relative_to(ROOT).as_posix(): ast.parse(file.read_text("utf-8"))
        for root in ROOTS
        for file in sorted((ROOT / root).rglob("*.py"))
    }


@functools.cache
def imported(tree: ast.AST) -> frozenset[str]:
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@functools.cache
def called(tree: ast.AST) -> tuple[tuple[str, ast.Call], ...]:
    """Calls, by the dotted name of what is called."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return tuple((_name(node.func), node) for node in found)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_there_is_something_to_look_at() -> None:
    found = trees()
    assert len(found) > 400
    assert "gatewayd/daemon/run.py" in found
    assert "pickle" in imported(ast.parse("import pickle"))
    assert [name for name, _ in called(ast.parse("torch.load(x)"))] == ["torch.load"]


def test_nothing_is_loaded_that_can_be_code() -> None:
    """CVE-2025-32444 and thirteen like it: pickle from a socket, a dump, a file of weights."""
    bad = {"eval", "exec", "torch.load", "__import__", "recv_pyobj"}
    found = [
        (path, name)
        for path, tree in trees().items()
        for name in [
            *(one for one in imported(tree) if one.split(".")[0] in LOADERS),
            *(one for one in imported(tree) if one.startswith("multiprocessing")),
            *(one for one, _ in called(tree) if one in bad or one.endswith(".recv_pyobj")),
        ]
    ]
    assert found == []
    # Arrays of objects are pickles; numpy refuses them unless it is told otherwise.
    for path, tree in trees().items():
        for _, node in called(tree):
            assert all(keyword.arg != "allow_pickle" for keyword in node.keywords), path


def test_no_code_of_a_model_is_run() -> None:
    """CVE-2025-66448 and siblings: trust_remote_code that is hard-coded, ignored or inert."""
    for path, tree in trees("engine", "gatewayd", "plugins").items():
        assert "trust_remote_code" not in (ROOT / path).read_text(), path
        for name, node in called(tree):
            assert not name.endswith("from_pretrained"), (path, node.lineno)


def test_a_check_is_no_assertion() -> None:
    """CVE-2026-41523: a check written as ``assert`` is gone under ``python -O``."""
    kit = "plugins/gatewayd_hooks/testing/"
    for path, tree in trees("gatewayd", "engine", "lang", "migrations", "plugins").items():
        if not path.startswith(kit):
            lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
            assert lines == [], path


def test_every_template_is_in_the_sandbox() -> None:
    """CVE-2026-5760, CVE-2024-34359: a model's template in jinja2's plain environment."""
    sandbox = "jinja2.sandbox.ImmutableSandboxedEnvironment"
    environments: dict[str, set[str]] = {}
    for path, tree in trees().items():
        names = {name for name in imported(tree) if name.split(".")[0] == "jinja2"}
        if names:
            assert path.startswith("gatewayd/text/template")
            assert not names & {"jinja2.Template", "jinja2.nativetypes"}
            environments[path] = {name for name in names if name.endswith("Environment")}
    assert environments.pop("gatewayd/text/template_bounds.py") == {sandbox}
    assert not set().union(*environments.values()), "the others have theirs from there"


def test_no_statement_is_put_together_from_text() -> None:
    """CVE-2026-42208: a key that became a part of a statement."""
    for path, tree in trees("gatewayd", "migrations").items():
        for name, node in called(tree):
            if name.split(".")[-1] not in ("execute", "exec_driver_sql", "executescript", "text"):
                continue
            given = node.args[:1]
            for argument in given:
                if isinstance(argument, ast.JoinedStr):
                    # Names and numbers of ours: a pragma has no parameters, nor has a column.
                    begins = ast.unparse(argument)
                    is_ours = "PRAGMA" in begins or path.startswith("migrations/")
                    assert is_ours, (path, node.lineno)
                else:
                    is_text = isinstance(argument, ast.BinOp) and isinstance(
                        argument.left, ast.Constant | ast.JoinedStr
                    )
                    assert not is_text, (path, node.lineno)
                    assert ".format(" not in ast.unparse(argument), (path, node.lineno)


def test_the_daemon_fetches_nothing() -> None:
    """CVE-2026-0599, CVE-2025-6242 and siblings: addresses in a request that the server asks."""
    for path, tree in trees().items():
        if not CLIENTS.match(path):
            asks = {name for name in imported(tree)} & SENDERS
            assert asks == ({"aiohttp"} if UPSTREAMS.fullmatch(path) else set()), path
    # Nor is one of them brought in by something else.
    program = "import sys, gatewayd.daemon.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert set(done.stdout.split()) & {"aiohttp", "httpx", "requests"} == set(), done.stderr


def test_requests_name_no_server() -> None:
    """Addresses of upstreams are the configuration's; paths are constants of their strategies."""

    def arguments(folder: str, names: tuple[str, ...], place: int) -> set[str]:
        calls = [call for tree in trees(folder).values() for call in called(tree)]
        return {ast.unparse(node.args[place]) for name, node in calls if name in names}

    assert arguments("gatewayd/upstreams/", ("self._session.request",), 1) == {
        "endpoint.url + path"
    }
    for method in ("get", "post", "put", "ws_connect"):
        assert not arguments("gatewayd/upstreams/", (f"self._session.{method}",), 0)
    paths = arguments("plugins/gatewayd_upstream_", ("http.post", "http.get"), 0)
    assert paths == {
        "'/models'",
        "'/messages'",
        "'/embeddings'",
        "_PATHS[call.kind]",
        "self._config.probe_path",
    }


def test_no_shell_is_started() -> None:
    """CVE-2023-6019, CVE-2026-42271: a field of a request that became a command."""
    for path, tree in trees().items():
        for name, node in called(tree):
            assert name not in ("os.system", "os.popen", "subprocess.getoutput"), path
            assert not name.endswith("create_subprocess_shell"), path
            for keyword in node.keywords:
                is_shell = keyword.arg == "shell" and ast.unparse(keyword.value) != "False"
                assert not is_shell, (path, node.lineno)


STARTS = {
    *(f"subprocess.{one}" for one in ("run", "Popen", "call", "check_call", "check_output")),
    *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "pty.spawn", "pty.fork"),
    *("os.fork", "os.forkpty", "os.system", "os.popen", "os.startfile"),
}
"""Calls that start a process; also all of ``os.exec``, ``os.spawn`` and ``os.posix_spawn``."""
HOOKS = "plugins/gatewayd_hooks"
ALLOWED = {
    (f"{HOOKS}/helpers/children.py", "subprocess.run"),
    (f"{HOOKS}/helpers/children.py", "subprocess.Popen"),
    (f"{HOOKS}/helpers/children.py", "asyncio.create_subprocess_exec"),
    # Becomes an engine; is started by the former.
    ("plugins/gatewayd_exec_local/parent_death_signal.py", "os.execv"),
    # A daemon that is killed, in the conformance kit.
    (f"{HOOKS}/testing/execution.py", "os.fork"),
}
NAMED = {
    f"{HOOKS}/helpers/children.py": "",
    f"{HOOKS}/testing/execution.py": "the kit's engines, started by the executor under test",
    "gatewayd/daemon/systemd/units.py": "looks for the program beside it",
    "tui/gatewayd_tui/serve.py": "a line for textual-serve, which starts it",
}
"""Files that name the interpreter."""


def starts(tree: ast.Module) -> set[str]:
    begins = ("os.exec", "os.spawn", "os.posix_spawn")
    found = {name for name, _ in called(tree) if name in STARTS or name.startswith(begins)}
    found |= {
        name for name, _ in called(tree) if name.endswith((".subprocess_exec", ".subprocess_shell"))
    }
    return found | {one for one in imported(tree) if one in STARTS or one.startswith(begins)}


def test_every_process_is_started_in_one_place() -> None:
    """A new way to start one that forgets the folder, the flag or the environment is seen here."""
    found = {(path, name) for path, tree in trees().items() for name in starts(tree)}
    assert found == ALLOWED
    pools = {
        path
        for path, tree in trees().items()
        if any("ProcessPool" in one or one.startswith("multiprocessing") for one in imported(tree))
    }
    assert pools == set()
    for text in ("import subprocess\nsubprocess.run(x)", "from os import execv", "os.execvp(a, b)"):
        assert starts(ast.parse(text))


def test_nobody_else_names_the_interpreter_or_copies_the_environment() -> None:
    named, copied = set(), set()
    for path, tree in trees().items():
        for node in ast.walk(tree):
            text = (
                ast.unparse(node) if isinstance(node, ast.Attribute | ast.Dict | ast.BinOp) else ""
            )
            if text == "sys.executable":
                named.add(path)
            is_copy = (isinstance(node, ast.Dict) and "**os.environ" in text) or (
                isinstance(node, ast.BinOp) and text.startswith("os.environ |")
            )
            if is_copy or text == "os.environ.copy":
                copied.add(path)
    assert named == NAMED.keys()
    assert copied == set()
    for template in (ROOT / "gatewayd/authoring/templates").rglob("*.tmpl"):
        assert "os.environ" not in template.read_text(), template


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("jinja2", "3.1.6"),  # CVE-2024-56326, CVE-2024-56201, CVE-2025-27516
        ("python-multipart", "0.0.30"),  # CVE-2024-53981, CVE-2026-24486, CVE-2026-53539
        ("starlette", "1.3.1"),  # CVE-2026-48710, CVE-2026-48817, CVE-2026-54283
        ("torch", "2.6.0"),  # CVE-2025-32434
        ("xgrammar", "0.1.32"),  # CVE-2025-57809, CVE-2026-25048
    ],
)
def test_no_library_is_older_than_its_last_advisory(name: str, safe: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [Requirement(line) for some in lists for line in some]
    (floor, *_) = [
        specifier.version
        for one in wanted
        if one.name == name
        for specifier in one.specifier
        if specifier.operator == ">="
    ]
    assert Version(floor) >= Version(safe)
