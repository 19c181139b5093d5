"""Writes the text of an XLA program that calls one of our handlers.

tf_ops/xla/handlers.h says what the handlers take.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence

# The results of these have the shapes and the memory of the operands.
_IN_PLACE = ("allreduce", "broadcast", "together")

_OPERATIONS = {
    "add": operator.add,
    "multiply": operator.mul,
    "divide": operator.floordiv,
}


@dataclasses.dataclass(frozen=True)
class TensorType:
    """A type of StableHLO.

    Args:
        element: "f32", "ui8", "i1" and so on.
        shape: The lengths; None if one is unknown until XLA compiles.
    """

    element: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        lengths = ["?" if n is None else str(n) for n in self.shape]
        return f"tensor<{'x'.join([*lengths, self.element])}>"


# The last operand and the last result of each call. It chains the calls of a
# program. It is an i64 because TensorFlow has no i32 variables on GPUs.
TOKEN = TensorType("i64", ())

# The platforms of a program. Handlers have the same names on both.
PLATFORMS = ("CPU", "CUDA")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A call of a handler.

    Args:
        kind: "allreduce", "allgather" and so on.
        tensors: The types of this rank's inputs.
        attributes: The handler's attributes: strings, 32-bit integers, doubles.
        size: Number of ranks that take part.
        index: The index of this rank among them.
    """

    kind: str
    tensors: tuple[TensorType, ...]
    attributes: Mapping[str, str | int | float]
    size: int
    index: int

    def results(self) -> list[TensorType]:
        """Returns the types of the results, without the token."""
        return [
            TensorType(tensor.element, self._result_shape(tensor.shape))
            for tensor in self.tensors
        ]

    def module(self) -> str:
        """Returns the text of the program."""
        operands = [*self.tensors, TOKEN]
        results = [*self.results(), TOKEN]
        names = [f"%arg{i}" for i in range(len(operands))]
        is_static = not any(None in operand.shape for operand in operands)
        body: list[str] = []
        shapes = []
        if not is_static:
            shapes = [
                self._add_shape(*pair, body)
                for pair in zip(names, operands, strict=True)
            ]
        shape_types = [_shape_type(of) for of in operands[: len(shapes)]]
        types = _listed(results)
        body.append(
            f"%out:{len(results)} = stablehlo.custom_call "
            f"@hvd_{self.kind}({_listed([*names, *shapes])}) "
            f"{{{self._call_attributes(operands, results, shape_types)}}} : "
            f"({_listed([*operands, *shape_types])}) -> ({types})"
        )
        outputs = [f"%out#{i}" for i in range(len(results))]
        body.append(f"return {_listed(outputs)} : {types}")
        parameters = [
            "%platform: tensor<i32>",  # its place in PLATFORMS
            *(
                f"{name}: {operand}"
                for name, operand in zip(names, operands, strict=True)
            ),
        ]
        # The flag makes XLA fill in lengths that it learns later.
        flag = f"jax.uses_shape_polymorphism = {str(not is_static).lower()}"
        return "\n".join(
            [
                f"module @hvd attributes {{{flag}}} {{",
                f"  func.func public @main({_listed(parameters)})",
                f"      -> ({types}) {{",
                *(f"    {line}" for line in body),
                "  }",
                "}",
                "",
            ]
        )

    def _result_shape(
        self, shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        if not shape or shape[0] is None:
            return shape
        rows = shape[0]
        for operation, number in self._steps():
            rows = _OPERATIONS[operation](rows, number)
        return (rows, *shape[1:])

    def _steps(self) -> list[tuple[str, int]]:
        """Returns the steps from an operand's row count to the result's."""
        if self.kind == "allgather":
            return [("multiply", self.size)]
        if self.kind == "reducescatter":
            # The first `rows mod size` ranks have one row more.
            return [("add", self.size - 1 - self.index), ("divide", self.size)]
        return []

    def _add_shape(self, operand: str, of: TensorType, body: list[str]) -> str:
        """Adds the shape of a result, as a vector; returns its name."""
        name = operand.replace("arg", "shape")
        if None not in of.shape:
            shape = list(self._result_shape(of.shape))
            kind = _shape_type(of)
            body.append(f"{name} = stablehlo.constant dense<{shape}> : {kind}")
            return name
        lengths = []
        for axis in range(len(of.shape)):
            length = f"{name}_{axis}"
            body.append(
                f"{length} = stablehlo.get_dimension_size {operand}, dim = "
                f"{axis} : ({of}) -> tensor<i32>"
            )
            for operation, number in self._steps() if axis == 0 else []:
                result = f"{length}_{operation}"
                body += [
                    f"{result}_by = stablehlo.constant dense<{number}> : "
                    "tensor<i32>",
                    f"{result} = stablehlo.{operation} {length}, "
                    f"{result}_by : tensor<i32>",
                ]
                length = result
            body.append(
                f"{length}_vector = stablehlo.reshape {length} : "
                "(tensor<i32>) -> tensor<1xi32>"
            )
            lengths.append(f"{length}_vector")
        body.append(
            f"{name} = stablehlo.concatenate {_listed(lengths)}, dim = 0 : "
            f"({_listed(['tensor<1xi32>'] * len(lengths))}) -> "
            f"{_shape_type(of)}"
        )
        return name

    def _call_attributes(
        self,
        operands: Sequence[TensorType],
        results: Sequence[TensorType],
        shape_types: Sequence[TensorType],
    ) -> str:
        num_operands = len(operands)
        config = [
            f"{name} = {_literal(value)}"
            for name, value in {**self.attributes, "has_token": 1}.items()
        ]
        first = 0 if self.kind in _IN_PLACE else len(self.tensors)
        aliases = [
            "#stablehlo.output_operand_alias<output_tuple_indices = "
            f"[{i}], operand_index = {i}, "
            "operand_tuple_indices = []>"
            for i in range(first, num_operands)
        ]
        attributes = [
            "api_version = 4 : i32",
            "has_side_effect = true",
            f"backend_config = {{{_listed(config)}}}",
            f"output_operand_aliases = [{_listed(aliases)}]",
            # Without these, XLA might choose a different layout on each rank.
            f"operand_layouts = {_layouts([*operands, *shape_types])}",
            f"result_layouts = {_layouts(results)}",
        ]
        if shape_types:
            indices = range(num_operands, 2 * num_operands)
            attributes.append(
                f"indices_of_shape_operands = dense<{list(indices)}> : "
                f"tensor<{num_operands}xi64>"
            )
        return _listed(attributes)


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items))


def _shape_type(of: TensorType) -> TensorType:
    return TensorType("i32", (len(of.shape),))


def _layouts(tensors: Sequence[TensorType]) -> str:
    """Returns the layouts attribute: each tensor's axes, the last one first."""
    layouts = []
    for tensor in tensors:
        num_axes = len(tensor.shape)
        axes = f"[{_listed(range(num_axes - 1, -1, -1))}]" if num_axes else ""
        layouts.append(f"dense<{axes}> : tensor<{num_axes}xindex>")
    return f"[{_listed(layouts)}]"


def _literal(value: str | int | float) -> str:
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    if isinstance(value, int):
        return f"{value} : i32"
    return f"{value:.17e} : f64"


def _escaped(text: str) -> str:
    return "".join(
        chr(byte)
        if 32 <= byte < 127 and byte not in b'"\\'
        else f"\\{byte:02X}"
        for byte in text.encode()
    )
