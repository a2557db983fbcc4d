"""Static types of FlashInfer expressions in our sources, as far as known."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tests.engine.attention.flashinfer_wheel import methods


def is_own(value: ast.expr) -> bool:
    """Whether it is the object or the class of a method."""
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


class Types:
    """Which of FlashInfer's classes an expression of a function is of, as far as can be told."""

    def __init__(
        self,
        classes: Mapping[str, ast.ClassDef],
        owner: ast.ClassDef | None,
        function: ast.FunctionDef,
    ) -> None:
        self._classes = classes
        self._owner = owner
        self._function = function

    def of(self, value: ast.expr, steps: int = 5) -> list[ast.ClassDef]:
        """The classes; none if it cannot be told in so many steps."""
        if isinstance(value, ast.Name):
            given = self._function.args
            for one in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                if one.arg == value.id and one.annotation is not None:
                    return self._annotated(one.annotation)
        if isinstance(value, ast.Call):
            return self._made(value)
        stored = self._stored(value)
        return self.of(stored, steps - 1) if stored is not None and steps else []

    def literal(self, value: ast.expr) -> ast.expr | None:
        """The expression that a name or an attribute was given."""
        return value if isinstance(value, ast.Dict | ast.Tuple | ast.List) else self._stored(value)

    def _annotated(self, annotation: ast.expr) -> list[ast.ClassDef]:
        names = [node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)]
        return [self._classes[name] for name in names if name in self._classes]

    def _made(self, value: ast.Call) -> list[ast.ClassDef]:
        if isinstance(value.func, ast.Name) and value.func.id in self._classes:
            return [self._classes[value.func.id]]
        if (
            isinstance(value.func, ast.Attribute)
            and is_own(value.func.value)
            and self._owner is not None
        ):
            made = methods(self._owner).get(value.func.attr)
            if made is not None and made.returns is not None:
                return self._annotated(made.returns)
        return []

    def _stored(self, value: ast.expr) -> ast.expr | None:
        where: ast.AST | None = self._function
        if isinstance(value, ast.Attribute) and is_own(value.value):
            where = self._owner
        elif not isinstance(value, ast.Name):
            return None
        if where is None:
            return None
        wanted = ast.unparse(value)
        for node in ast.walk(where):
            if isinstance(node, ast.Assign) and wanted in map(ast.unparse, node.targets):
                # Of a parameter of the method that stores it, its annotation says more.
                if isinstance(node.value, ast.Name) and self._owner is not None:
                    return _parameter(self._owner, node) or node.value
                return node.value
        return None


def _parameter(owner: ast.ClassDef, node: ast.Assign) -> ast.expr | None:
    """A call that stands for the class with which a stored parameter is annotated."""
    for method in methods(owner).values():
        if node in ast.walk(method) and isinstance(node.value, ast.Name):
            for one in (*method.args.args, *method.args.kwonlyargs):
                if one.arg == node.value.id and isinstance(one.annotation, ast.Name):
                    return ast.Call(one.annotation, [], [])
    return None
