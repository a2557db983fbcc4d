"""Nothing that a captured step may reach makes the host wait for the device.

A wait inside a capture ends it, and one in a step that is launched kernel by kernel costs all
overlap with the next one.
"""

from __future__ import annotations

import ast

import pytest

from tests.engine.device.call_graph import Function, own_nodes, reached

ROOTS = [
    "device/runner.py:DeviceRunner._captured_with.forward",
    "device/runner.py:DeviceRunner._captured_with.whole",
    "device/pieces.py:Pieces._launch",
    "device/drafted.py:DraftedSteps._captured.forward",
    "device/row_model.py:DeviceRowModel._made.run",
]
_HOST = {
    # Attention of a CPU, and what is measured at the start.
    "attention": "contexts dense groups measuring prefixes reference selection selective steady",
    # Matrices of a CPU.
    "model/linears": "brought choose dequantized halves int4 int8 packed sixteens sums",
    # How weights are read.
    "model": "assembly checkpoint loader sources spec weights",
    # Kernels in torch, which ask a tensor of the host; how weights are laid out for kernels.
    "kernels": "blocks packing twins",
    # What launches captured steps, and reads their results.
    "device": "drafted graphs memory outcome row_model runner state transfers verified verify"
    " warming",
}
HOST = frozenset(f"{folder}/{name}.py" for folder, names in _HOST.items() for name in names.split())
"""Files whose functions are on no path of a captured step, whatever their names."""
READS = {"item", "tolist", "cpu", "numpy", "nonzero", "argwhere", "masked_select", "unique"}
READS |= {"synchronize", "is_nonzero", "bincount", "allclose", "equal"}
MADE = {"tensor", "as_tensor", "scalar_tensor"}
REDUCED = {"any", "all", "sum", "max", "min", "amax", "amin", "isfinite"}

ALLOWED = {
    # Experts that are multiplied one by one are not captured.
    "model/moe.py:MixtureOfExperts.__call__": "bincount tolist",
    # At load.
    "model/layers.py:RMSNorm.__init__": "tensor",
}
"""What may be reached by its name alone, and does not run in a step."""


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


def test_a_captured_step_reaches_what_it_should() -> None:
    found = {str(function) for function in reached(ROOTS, HOST)}
    for name in (
        "attention/flash.py:_Step.__call__",
        "attention/append.py:Append.__call__",
        "kernels/rope.py:rope_append",
        "kernels/sampling.py:sample",
        "kernels/norm.py:norm_heads",
        "kernels/expert_mm.py:expert_gates",
        "kernels/routing.py:route_visits",
        "model/decoder.py:Layer.__call__",
        "model/linears/device.py:Apart.__call__",
        "model/linears/stacks.py:Stack.given",
        "model/moe.py:GroupedExperts.__call__",
        "model/parts.py:FusedParts.norm.<lambda>",
        "attention/slots.py:_Slots.__call__",
        "device/slots.py:Slots.fill",
    ):
        assert name in found


def test_nothing_in_a_captured_step_waits_for_the_device() -> None:
    found = {
        str(function): " ".join(sorted(some))
        for function in reached(ROOTS, HOST)
        if (some := waits(function))
    }
    wanted = {name: " ".join(sorted(some.split())) for name, some in ALLOWED.items()}
    assert found == wanted


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
