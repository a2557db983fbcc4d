"""Builder of one function in LLVM IR: values with operators, typed pointers, loops and vectors.

Kernels are Python functions that emit code, as those of Triton are: Python's loops unroll, and
``KernelFunction.loop`` emits one. Arithmetic is exact IEEE arithmetic in the order written; LLVM
neither reorders it nor fuses a multiplication and an addition unless ``fma`` says so, hence the
same bits on every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64, F16, BF16 = ir.FloatType(), ir.DoubleType(), ir.HalfType(), I16
POINTER = ir.PointerType()


def new_module(name: str) -> ir.Module:
    """Create an empty module."""
    return ir.Module(name)


class Value:
    """A number or a vector in registers.

    ``+ - *`` are those of its type, ``//``, ``%`` and shifts are of unsigned integers, and
    comparisons of signed integers or of floats give one bit (or a vector of them).
    """

    __slots__ = ("at", "ir")

    def __init__(self, at: KernelFunction, value: ir.Value) -> None:
        self.at = at
        self.ir = value

    @property
    def is_float(self) -> bool:
        """Whether it holds floats."""
        kind = self.ir.type
        element = kind.element if isinstance(kind, ir.VectorType) else kind
        return isinstance(element, ir.FloatType | ir.DoubleType)

    def _with(self, other: Operand, on_int: str, on_float: str) -> Value:
        name = on_float if self.is_float else on_int
        made = getattr(self.at.ir, name)(self.ir, self.at.like(self, other).ir)
        return Value(self.at, made)

    def __add__(self, other: Operand) -> Value:
        return self._with(other, "add", "fadd")

    def __sub__(self, other: Operand) -> Value:
        return self._with(other, "sub", "fsub")

    def __mul__(self, other: Operand) -> Value:
        return self._with(other, "mul", "fmul")

    def __truediv__(self, other: Operand) -> Value:
        return self._with(other, "fdiv", "fdiv")

    def __floordiv__(self, other: Operand) -> Value:
        return self._with(other, "udiv", "fdiv")

    def __mod__(self, other: Operand) -> Value:
        return self._with(other, "urem", "frem")

    def __and__(self, other: Operand) -> Value:
        return self._with(other, "and_", "and_")

    def __or__(self, other: Operand) -> Value:
        return self._with(other, "or_", "or_")

    def __xor__(self, other: Operand) -> Value:
        return self._with(other, "xor", "xor")

    def __lshift__(self, other: Operand) -> Value:
        return self._with(other, "shl", "shl")

    def __rshift__(self, other: Operand) -> Value:
        return self._with(other, "lshr", "lshr")

    def _compare(self, sign: str, other: Operand) -> Value:
        right = self.at.like(self, other).ir
        if self.is_float:
            return Value(self.at, self.at.ir.fcmp_ordered(sign, self.ir, right))
        return Value(self.at, self.at.ir.icmp_signed(sign, self.ir, right))

    def __lt__(self, other: Operand) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare(">=", other)

    def equals(self, other: Operand) -> Value:
        """Compare for equality."""
        return self._compare("==", other)

    def differs(self, other: Operand) -> Value:
        """Compare for inequality."""
        return self._compare("!=", other)


Operand = Value | int | float


class Pointer:
    """An address with the type of its elements."""

    __slots__ = ("at", "element", "ir")

    def __init__(self, at: KernelFunction, address: ir.Value, element: ir.Type) -> None:
        self.at, self.ir, self.element = at, address, element

    def __add__(self, offset: Operand) -> Pointer:
        index = self.at.index(offset).ir
        moved = self.at.ir.gep(self.ir, [index], source_etype=self.element)
        return Pointer(self.at, moved, self.element)

    def __getitem__(self, index: Operand) -> Value:
        return self.vector(1, index)

    def __setitem__(self, index: Operand, value: Operand) -> None:
        target = self + index
        right = self.at.constant(self.element, value)
        self.at.ir.store(right.ir, target.ir, align=self._align(1))

    def vector(self, lanes: int, index: Operand = 0) -> Value:
        """Load ``lanes`` elements, unaligned."""
        kind = self.element if lanes == 1 else ir.VectorType(self.element, lanes)
        address = (self + index).ir
        return Value(self.at, self.at.ir.load(address, align=self._align(1), typ=kind))

    def store(self, value: Value, index: Operand = 0) -> None:
        """Store a vector, unaligned."""
        self.at.ir.store(value.ir, (self + index).ir, align=self._align(1))

    def cast(self, element: ir.Type) -> Pointer:
        """Return the same address with another element type."""
        return Pointer(self.at, self.ir, element)

    def pointer(self, index: Operand, element: ir.Type) -> Pointer:
        """Load an address that is stored as an int64."""
        return self.at.address(self.cast(I64)[index], element)

    def number(self) -> Value:
        """Return the address as an int64."""
        return Value(self.at, self.at.ir.ptrtoint(self.ir, I64))

    def is_set(self) -> Value:
        """Whether the address is not null."""
        return self.number().differs(0)

    def _align(self, lanes: int) -> int:
        return _size(self.element) * lanes


class LocalVariable:
    """A mutable local; LLVM keeps it in a register."""

    __slots__ = ("at", "slot", "type")

    def __init__(self, at: KernelFunction, first: Value) -> None:
        self.at, self.type = at, first.ir.type
        # At the entry: a slot within a loop would grow the stack at each iteration.
        with at.ir.goto_entry_block():
            self.slot = at.ir.alloca(self.type)
        self.set(first)

    def get(self) -> Value:
        """Return the current value."""
        return Value(self.at, self.at.ir.load(self.slot, typ=self.type))

    def set(self, value: Value) -> None:
        """Assign."""
        self.at.ir.store(value.ir, self.slot)


class KernelFunction:
    """A function under construction.

    Args:
        module: to which it is added.
        name: of the symbol.
        parameters: types; pointers by the type of their elements in a list of one.
        is_exported: whether it can be called from outside of the module.
        returns: type of the result; None for none.
    """

    def __init__(
        self,
        module: ir.Module,
        name: str,
        parameters: Sequence[ir.Type | list[ir.Type]],
        *,
        is_exported: bool = False,
        returns: ir.Type | None = None,
    ) -> None:
        types = [POINTER if isinstance(one, list) else one for one in parameters]
        kind = ir.FunctionType(returns or ir.VoidType(), types)
        self.function = ir.Function(module, kind, name)
        if not is_exported:
            self.function.linkage = "internal"
        self.function.attributes.add("nounwind")
        self.ir = ir.IRBuilder(self.function.append_basic_block("entry"))
        self._module = module
        self.arguments: list[Any] = [
            Pointer(self, given, one[0]) if isinstance(one, list) else Value(self, given)
            for given, one in zip(self.function.args, parameters, strict=True)
        ]

    def address(self, number: Value, element: ir.Type) -> Pointer:
        """Return an int64 as an address."""
        return Pointer(self, self.ir.inttoptr(number.ir, POINTER), element)

    def constant(self, kind: ir.Type, value: Operand) -> Value:
        """Return a constant of a type; values are returned as they are."""
        return value if isinstance(value, Value) else Value(self, ir.Constant(kind, value))

    def index(self, value: Operand) -> Value:
        """Return an int64."""
        return self.constant(I64, value)

    def like(self, value: Value, other: Operand) -> Value:
        """Return ``other`` in the type of ``value``, in all lanes of a vector."""
        if isinstance(other, Value):
            return other
        kind = value.ir.type
        if isinstance(kind, ir.VectorType):
            return Value(self, ir.Constant(kind, [ir.Constant(kind.element, other)] * kind.count))
        return Value(self, ir.Constant(kind, other))

    def zeros(self, lanes: int) -> Value:
        """Return a vector of float32 zeros."""
        return Value(self, ir.Constant(ir.VectorType(F32, lanes), [0.0] * lanes))

    def floats(self, lanes: int, value: float) -> Value:
        """Return a vector with one float32 in all lanes."""
        return self.like(self.zeros(lanes), value)

    def repeated(self, kind: ir.VectorType, value: int) -> Value:
        """Return a vector of a type with one integer in all lanes."""
        return Value(self, ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count))

    def vector_of(self, values: Sequence[float]) -> Value:
        """Return a vector of float32 constants."""
        return Value(self, ir.Constant(ir.VectorType(F32, len(values)), list(values)))

    def numbers(self, values: Sequence[int]) -> Value:
        """Return a vector of int64 constants."""
        return Value(self, ir.Constant(ir.VectorType(I64, len(values)), list(values)))

    def variable(self, first: Operand) -> LocalVariable:
        """Create a mutable local; an int becomes an int64, a float a float32."""
        if not isinstance(first, Value):
            first = self.constant(F32 if isinstance(first, float) else I64, first)
        return LocalVariable(self, first)

    def scratch(self, element: ir.Type, count: int) -> Pointer:
        """Reserve memory on the stack, aligned to a cache line."""
        with self.ir.goto_entry_block():
            made = self.ir.alloca(ir.ArrayType(element, count))
            made.align = 64
        return self.address(Value(self, self.ir.ptrtoint(made, I64)), element)

    @contextmanager
    def loop(self, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Value]:
        """Emit ``for index in range(start, stop, step)``, ``step`` positive."""
        counter = self.variable(self.index(start))
        head = self.ir.append_basic_block("head")
        body = self.ir.append_basic_block("body")
        end = self.ir.append_basic_block("end")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        now = counter.get()
        self.ir.cbranch((now < self.index(stop)).ir, body, end)
        self.ir.position_at_end(body)
        yield now
        counter.set(counter.get() + self.index(step))
        self.ir.branch(head)
        self.ir.position_at_end(end)

    @contextmanager
    def repeat_while(self) -> Iterator[Loop]:
        """Emit a loop whose body calls ``Loop.stop_unless``."""
        head = self.ir.append_basic_block("again")
        end = self.ir.append_basic_block("done")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        yield Loop(self, end)
        self.ir.branch(head)
        self.ir.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Emit ``if condition:``."""
        with self.ir.if_then(condition.ir):
            yield

    def choose(self, condition: Value, yes: Value, no: Value) -> Value:
        """Select by lane or as a whole."""
        return Value(self, self.ir.select(condition.ir, yes.ir, no.ir))

    def least(self, a: Value, b: Operand) -> Value:
        """Return the smaller number."""
        other = self.like(a, b)
        return self.choose(a < other, a, other)

    def most(self, a: Value, b: Operand) -> Value:
        """Return the larger number."""
        other = self.like(a, b)
        return self.choose(a > other, a, other)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once."""
        return self.overloaded("llvm.fma", a, b, c)

    def overloaded(self, name: str, *values: Value) -> Value:
        """Call an intrinsic of floats whose name ends with the type of its arguments."""
        kind = values[0].ir.type
        lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        element = kind.element if lanes else kind
        suffix = lanes + ("f64" if element == F64 else "f32")
        return self.intrinsic(f"{name}.{suffix}", kind, *values)

    def intrinsic(self, name: str, kind: ir.Type, *values: Value) -> Value:
        """Call an intrinsic by its full name, like ``llvm.sqrt.f32``."""
        found = self._module.globals.get(name)
        if found is None:
            signature = ir.FunctionType(kind, [value.ir.type for value in values])
            found = ir.Function(self._module, signature, name)
        return Value(self, self.ir.call(found, [value.ir for value in values]))

    def prefetch(self, pointer: Pointer) -> None:
        """Ask for the cache line at an address, which need not be valid."""
        rest = [self.constant(I32, number) for number in (0, 3, 1)]  # to read, near, data
        name, kind = "llvm.prefetch.p0", ir.VoidType()
        self.intrinsic(name, kind, Value(self, pointer.ir), *rest)

    def external(self, name: str, returns: ir.Type, *values: Value) -> Value:
        """Call a function of the C library; its arguments' types are those of the first call."""
        return self.intrinsic(name, returns, *values)

    def call(self, function: KernelFunction, *values: Value | Pointer) -> Value:
        """Call another function of the module."""
        return Value(self, self.ir.call(function.function, [value.ir for value in values]))

    def splat(self, value: Value, lanes: int) -> Value:
        """Copy a number into all lanes."""
        kind = ir.VectorType(value.ir.type, lanes)
        one = self.ir.insert_element(ir.Constant(kind, ir.Undefined), value.ir, I32(0))
        mask = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return Value(self, self.ir.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask))

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """Take lanes of two vectors, those of ``b`` counted behind those of ``a``."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return Value(self, self.ir.shuffle_vector(a.ir, b.ir, mask))

    def lane(self, vector: Value, index: int) -> Value:
        """Return one lane."""
        return Value(self, self.ir.extract_element(vector.ir, I32(index)))

    def bits_as(self, value: Value, kind: ir.Type) -> Value:
        """Reinterpret the bits of a value."""
        return Value(self, self.ir.bitcast(value.ir, kind))

    def convert(self, value: Value, how: str, kind: ir.Type) -> Value:
        """Convert to another type by the instruction of that name, like ``zext`` or ``fptosi``."""
        return Value(self, getattr(self.ir, how)(value.ir, kind))

    def saturated(self, value: Value, kind: ir.VectorType) -> Value:
        """Convert a vector of float32 to int32, limited to its range; NaN becomes 0."""
        name = f"llvm.fptosi.sat.v{kind.count}i32.v{kind.count}f32"
        return self.intrinsic(name, kind, value)

    def finish(self, value: Value | None = None) -> KernelFunction:
        """Return from the function."""
        if value is None:
            self.ir.ret_void()
        else:
            self.ir.ret(value.ir)
        return self


class Loop:
    """A loop of ``KernelFunction.repeat_while``."""

    __slots__ = ("_at", "_end")

    def __init__(self, at: KernelFunction, end: ir.Block) -> None:
        self._at, self._end = at, end

    def stop_unless(self, condition: Value) -> None:
        """Leave the loop unless a condition holds."""
        go_on = self._at.ir.append_basic_block("go_on")
        self._at.ir.cbranch(condition.ir, go_on, self._end)
        self._at.ir.position_at_end(go_on)


def _size(kind: ir.Type) -> int:
    if isinstance(kind, ir.IntType):
        return max(1, int(kind.width) // 8)
    if isinstance(kind, ir.HalfType):
        return 2
    return 4 if isinstance(kind, ir.FloatType) else 8
