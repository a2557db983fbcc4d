"""FlashInfer signatures: our calls and the stand-in match the pinned wheel."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path

import pytest

from gatewayd_engine.attention.flashinfer.calls import LayerRun
from tests.engine.attention import fake_flashinfer, fake_launch
from tests.engine.attention.flashinfer_uses import ALIASES, File
from tests.engine.attention.flashinfer_wheel import attributes, methods, signature, wheel

ROOT = Path(__file__).parents[3]
WHERE = ("engine", "plugins", "gatewayd", "tests/gpu")
WRAPPERS = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")


def using() -> list[Path]:
    """Files that name FlashInfer in an import, and those beside them in the attention's folder."""
    found = {*(ROOT / "engine/gatewayd_engine/attention").rglob("*.py")}
    for folder in WHERE:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            if "from flashinfer" in text or "import flashinfer" in text:
                found.add(path)
    return sorted(found)


@cache
def ours() -> tuple[dict[str, list[Signature]], frozenset[str]]:
    """Signatures of the engine's own methods by name, and private names that are the engine's.

    Methods of a Protocol belong to a library, perhaps FlashInfer.
    """
    found: dict[str, list[Signature]] = {}
    private = set[str]()
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "tests/gpu").rglob("*.py")]:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                private |= attributes(node) | methods(node).keys()
                if is_protocol(node):
                    continue
                for name, method in methods(node).items():
                    is_static = "staticmethod" in map(ast.unparse, method.decorator_list)
                    found.setdefault(name, []).append(signature(method, is_method=not is_static))
            elif isinstance(node, ast.FunctionDef):
                private.add(node.name)
    return found, frozenset(private)


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether it says what others have."""
    return "Protocol" in map(ast.unparse, node.bases)


def read(paths: list[Path]) -> list[File]:
    """Their uses; classes that one file imports are known in the others."""
    signatures, private = ours()
    files = [File(path, wheel(), signatures) for path in paths]
    everything = {name: found for file in files for name, found in file.classes.items()}
    for file in files:
        file.read(everything, private)
    return files


def test_every_call_fits_the_real_signature_and_every_private_name_is_there() -> None:
    files = read(using())
    problems = [
        f"{file.path.relative_to(ROOT)}:{use.line}: {problem}"
        for file in files
        for use in file.uses
        if (problem := use.problem())
    ]
    problems += [one for file in files for one in file.unknown]
    assert not problems, "\n".join(problems)
    # The search itself finds what is known to be there.
    found = {(file.path.stem, use.target.name) for file in files for use in file.uses}
    assert found >= {
        *(("wrappers", name) for name in (*WRAPPERS, "plan", "fast_decode_plan")),
        *(("cascade", name) for name in ("merge_state_in_place", "run")),
        *(("backend", "run"), ("calls", "run"), ("machine", "gen_batch_prefill_module")),
        *(("probe", name) for name in ("tinygemm2_nobias_op", "mm_bf16_cublaslt_get_algos")),
        *(("probe", name) for name in (WRAPPERS[0], "plan", "run")),
    }


SOURCE = """
from flashinfer import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan
from flashinfer.jit.gemm import gen_mm_bf16_cublaslt_module
class Wrappers:
    def __init__(self, shape):
        self._heads = (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.page_size)
        self._settings = {"sm_scale": 1.0, "q_data_type": None}
        self._own = BatchDecodeWithPagedKVCacheWrapper(shape.floats, "NHD", backend="fa2")
    def plan(self, wrapper: BatchDecodeWithPagedKVCacheWrapper, page_indptr, pages, last, kv):
        wrapper.plan(copied(page_indptr), pages, last, *self._heads, **self._settings)
        fast_decode_plan(wrapper, page_indptr, pages, last, *self._heads)
        self._own.run(last, kv, out=last)
        self._own._int_workspace_buffer = last
        wrapper.begin_forward
    def product(self, a, b, out, work, handle, algos):
        module = gen_mm_bf16_cublaslt_module().build_and_load()
        module.mm_bf16_cublaslt_run_with_algo(a, b, None, out, work, handle, algos, 3)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("", "", ""),
        ("backend=", "backends=", "unexpected keyword argument 'backends'"),
        ('"NHD", backend', '"NHD", layout="NHD", backend', "unexpected keyword argument 'layout'"),
        ("last, *self._heads, **", "*self._heads, **", "'page_size'"),
        ("(page_indptr), pages", "(pages), page_indptr", "pages is given for indptr"),
        ('{"sm_scale"', '{"scale"', "unexpected keyword argument 'scale'"),
        ("shape.num_heads, shape.num_kv_heads", "shape.num_kv_heads, shape.num_heads", "is given"),
        ("pages, last, *self._heads)", "pages, *self._heads)", "'page_size'"),
        ("self._own.run(last, kv, out=last)", "self._own.run(last, out=last)", "paged_kv_cache"),
        ("self._own.run(", "self._own.runs(", "no method runs"),
        ("_own._int_workspace_buffer", "_own._ints_of", "_ints_of"),
        ("algos, 3)", "algos)", "missing a required argument"),
        (" fast_decode_plan\n", " fast_decoding_plan\n", "flashinfer has no fast_decoding_plan"),
        ("flashinfer.jit.gemm import", "flashinfer.jit.gem import", "flashinfer.jit.gem has no"),
    ],
)
def test_the_search_sees_what_is_wrong(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    assert right in SOURCE
    file = tmp_path / "wrappers.py"
    file.write_text(SOURCE.replace(right, wrong) if right else SOURCE)
    (found,) = read([file])
    problems = [*(use.problem() for use in found.uses), *found.unknown]
    told = "\n".join(filter(None, problems))
    assert bool(told) is bool(said), told
    assert said in told


def test_protocols_of_compiled_modules_are_their_declarations() -> None:
    compared = set()
    for path in using():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and is_protocol(node):
                for name, method in methods(node).items():
                    said = tuple(signature(method, is_method=True).parameters)
                    compiled = wheel().exported(name)
                    if compiled and name not in ("plan", "run", "paged_run"):
                        compared.add(name)
                        assert said in {one.parameters for one in compiled}, name
    assert compared >= {"mm_bf16_cublaslt_get_algos", "tinygemm2_nobias_op"}


def test_what_stands_for_flashinfer_has_its_signatures() -> None:
    tree = ast.parse(Path(inspect.getfile(fake_flashinfer)).read_text("utf-8"))
    compared = set()
    for node in tree.body:
        real = wheel().find("flashinfer", getattr(node, "name", ""))
        if isinstance(node, ast.ClassDef) and isinstance(real, ast.ClassDef):
            theirs = methods(real)
            for name, method in methods(node).items():
                if name in theirs:
                    compared.add(f"{node.name}.{name}")
                    assert signature(method) == signature(theirs[name]), f"{node.name}.{name}"
        elif isinstance(node, ast.FunctionDef) and isinstance(real, ast.FunctionDef):
            compared.add(node.name)
            assert signature(node) == signature(real), node.name
    assert compared >= {
        *(f"{name}.{method}" for name in WRAPPERS for method in ("__init__", "plan", "run")),
        *("fast_decode_plan", "merge_state_in_place"),
    }


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_what_attends_and_launches_as_the_engine_notes_it(name: str) -> None:
    found = wheel().find("flashinfer", name)
    assert isinstance(found, ast.ClassDef)
    run = methods(found)["run"]
    real = signature(run, is_method=True).parameters
    ours_ = [p for p in inspect.signature(LayerRun.run).parameters.values() if p.name != "self"]
    positional = [p.name for p in ours_ if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    assert [*real][: len(positional)] == positional
    assert all(real[p.name].kind is p.kind for p in ours_)
    # Each launch names nothing, and hands on queries, keys and values side by side.
    calls = [
        node
        for node in ast.walk(run)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._cached_module.paged_run"
    ]
    assert calls
    assert not any(call.keywords for call in calls)
    lists = [
        [ast.unparse(one) for one in node.elts]
        for node in ast.walk(run)
        if isinstance(node, ast.List)
    ]
    handed = [one for one in lists if "self._plan_info" in one and "q" in one]
    assert handed
    for one in handed:
        at = one.index("q")
        assert one[at : at + 3] == ["q", "k_cache", "v_cache"]
        assert one.count("out") == one.count("lse") == 1
    assert "_cached_module" in attributes(found)


def test_what_is_launched_takes_its_arguments_in_the_order_of_our_stand_in() -> None:
    """By Python's side of the module, and by the declarations of the compiled ones."""
    real = {"query_indptr": "qo_indptr", "plan": "plan_info_vec"}
    for name, theirs in ALIASES.items():
        (real[name],) = [one for one in theirs if "paged_kv" in one] or [real.get(name, name)]
    wanted = [real.get(p, p) for p in inspect.signature(fake_launch.paged_run).parameters]
    prefill = wheel().tree("flashinfer.prefill")
    assert prefill is not None
    python = [
        [*signature(node).parameters]
        for node in ast.walk(prefill)
        if isinstance(node, ast.FunctionDef) and node.name == "paged_run"
    ]
    compiled = [one for one in wheel().exported("paged_run") if "q" in one.parameters]
    assert len(compiled) >= 2, "FlashAttention 2 and 3"
    for found in (python[0], *(one.parameters for one in compiled)):
        assert [*found][: len(wanted)] == wanted
