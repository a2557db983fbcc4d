"""No host sync: nothing that a captured step may reach waits for the device.

A wait inside a capture ends it, and one in a step that is launched kernel by kernel costs all
overlap with the next one. Branches that no test takes are seen here alone; what the source does not
show, such as whether an index is a mask, is seen by ``test_no_host_reads``.
"""

from __future__ import annotations

import ast

import pytest

from tests.engine.runner.gpu.call_graph import Function, Source, own_nodes

ROOTS = [
    "runner/gpu/runner.py:DeviceRunner._captured_with.forward",
    "runner/gpu/runner.py:DeviceRunner._captured_with.whole",
    "runner/gpu/piecewise_graphs.py:PiecewiseGraphs._launch",
    "runner/gpu/draft_steps.py:DraftedSteps._captured.forward",
    "runner/gpu/draft_model.py:DeviceRowModel._made.run",
]
HOST = frozenset(
    {
        # Steps, which launch what is captured.
        "runner/gpu/runner.py:DeviceRunner.launch",
        "runner/gpu/draft_steps.py:DraftedSteps.launch",
        "runner/gpu/verifier.py:Verifier.launch",
        # At load, and at the start.
        "attention/tune_decode.py:DecodeChoice",
        "kernels/quantized/block_scales.py:blocks",
        "kernels/quantized/packing.py:_by_group",
        "kernels/quantized/packing.py:_unsigned",
        "kernels/quantized/packing.py:pack",
        "model/loading/checkpoint.py:Checkpoint",
        "model/quantizer.py:Quantizer",
        # On a CPU alone, or in steps that are not captured.
        "attention/kv_selection.py:Selection",
        "model/embedding_table.py:CodeTable",
        "model/gguf/expansion/config_json.py:_Config",
        "model/gguf/expansion/rope_fields.py:RopeFields",
        "model/moe.py:MixtureOfExperts",
    }
)
"""Functions and classes that are reached by their names, and are on no path of a captured step."""
READS = {"item", "tolist", "cpu", "numpy", "nonzero", "argwhere", "masked_select", "unique"}
READS |= {"synchronize", "is_nonzero", "bincount", "allclose", "equal"}
MADE = {"tensor", "as_tensor", "scalar_tensor"}
REDUCED = {"any", "all", "sum", "max", "min", "amax", "amin", "isfinite"}


def waits(function: Function) -> set[str]:
    """What in a function may wait for the device."""
    found = set()
    for node in own_nodes(function.node):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in READS:
                found.add(name)
            case ast.Call(func=ast.Attribute(attr=name), keywords=keywords) if name in MADE:
                if any(keyword.arg == "device" for keyword in keywords):
                    found.add(name)
            case ast.Call(func=ast.Attribute(attr="to"), args=args, keywords=keywords):
                named = {keyword.arg for keyword in keywords}
                goes = "device" in named or any("device" in ast.unparse(arg) for arg in args)
                if goes and "non_blocking" not in named:
                    found.add("to")
            case ast.Call(func=ast.Name(id="bool" | "int" | "float" as name), args=[inner]):
                if _is_reduced(inner):
                    found.add(name)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if _is_reduced(test):
                    found.add("if")
    return found


def _is_reduced(node: ast.expr) -> bool:
    """Whether it is a tensor's sum or the like, which has to be read."""
    match node:
        case ast.UnaryOp(operand=operand):
            return _is_reduced(operand)
        case ast.BoolOp(values=values):
            return any(map(_is_reduced, values))
        case ast.Compare(left=left, comparators=others):
            return any(map(_is_reduced, (left, *others)))
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in REDUCED
    return False


@pytest.fixture(scope="module")
def source() -> Source:
    """The engine's, read once."""
    return Source()


def found(source: Source, excluded: frozenset[str]) -> dict[str, set[str]]:
    """What may wait for the device, by function."""
    reached = source.reached(ROOTS, excluded)
    return {str(function): some for function in reached if (some := waits(function))}


def test_a_captured_step_reaches_what_it_should(source: Source) -> None:
    found = {str(function) for function in source.reached(ROOTS, HOST)}
    for name in (
        "attention/flashinfer/backend.py:_Step.__call__",
        "attention/append.py:Append.__call__",
        "kernels/rope.py:rope_append",
        "kernels/sampling/sample.py:sample",
        "kernels/norm.py:norm_heads",
        "kernels/experts/matmul.py:expert_gates",
        "kernels/experts/routing.py:route_visits",
        "model/decoder.py:DecoderLayer.__call__",
        "model/linears/select_gpu.py:DenseGpuLinear.__call__",
        "model/linears/expert_stacks.py:Stack.prepare_input",
        "model/moe.py:GroupedExperts.__call__",
        "model/parts.py:FusedParts.norm.<lambda>",
        "attention/draft_slots.py:_Slots.__call__",
        "runner/gpu/draft_slots.py:DraftSlotInputs.fill",
    ):
        assert name in found


def test_nothing_in_a_captured_step_waits_for_the_device(source: Source) -> None:
    assert found(source, HOST) == {}


@pytest.mark.parametrize("name", sorted(HOST))
def test_no_more_is_left_out_than_has_to_be(source: Source, name: str) -> None:
    assert any(name in parts for parts in source.parts.values())
    assert found(source, HOST - {name})


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x.sum().item()", {"item"}),
        ("torch.tensor(1.0, device=self._device)", {"tensor"}),
        ("torch.tensor([1])", set()),
        ("x.to(self._device)", {"to"}),
        ("x.to(self._device, non_blocking=True)", set()),
        ("x.to(torch.float32)", set()),
        ("y if (x > 0).any() else z", {"if"}),
        ("int(x.max())", {"int"}),
        ("int(len(x))", set()),
        ("[x.tolist() for x in xs]", {"tolist"}),
    ],
)
def test_a_wait_is_found(body: str, found: set[str]) -> None:
    function = ast.parse(f"def f(x):\n    return {body}\n").body[0]
    assert waits(Function("f", "", function)) == found
