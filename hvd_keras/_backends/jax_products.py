"""Finds products of rows by rows, and pairs, in a program of JAX."""

from __future__ import annotations

import math
from typing import Any

from hvd_keras._backends.products import are_paired, is_of_rows, rows_of

_OF_PAIRS = frozenset("add sub mul div max min eq ne gt ge lt le".split())


def products_of_rows(program: Any, num_state: int) -> list[str]:
    """Returns a name of each product of rows by rows.

    Args:
        program: A closed jaxpr.
        num_state: The number of its arguments before those of the batch.
    """
    found: list[str] = []
    arguments = program.jaxpr.invars
    rows = rows_of(each.aval.shape for each in arguments[num_state:])
    depends = [i >= num_state for i in range(len(arguments))]
    _look(program.jaxpr, depends, rows, found)
    # A user who gathers rows knows of it.
    return [] if "allgather" in found else found


def _look(
    jaxpr: Any, depends: list[bool], rows: set[int | None], found: list[str]
) -> list[bool]:
    """Looks at each equation; returns which results depend on the batch."""
    of_batch = {
        variable
        for variable, is_so in zip(jaxpr.invars, depends, strict=True)
        if is_so
    }

    def is_of_batch(atom: Any) -> bool:
        return not hasattr(atom, "val") and atom in of_batch  # no literal

    for equation in jaxpr.eqns:
        inputs = list(map(is_of_batch, equation.invars))
        outputs = [any(inputs)] * len(equation.outvars)
        if "allgather" in str(equation.params.get("target_name", "")):
            found.insert(0, "allgather")
        if equation.primitive.name == "dot_general" and all(inputs):
            ((axes, _), _) = equation.params["dimension_numbers"]
            taken = equation.invars[0].aval.shape
            contracted = math.prod(taken[axis] for axis in axes)
            shape = equation.outvars[0].aval.shape
            # Gradients of weights sum over the rows.
            if shape != (1, 1) and is_of_rows(shape, contracted, rows):
                found.append(_place_of(equation))
        if equation.primitive.name in _OF_PAIRS and all(inputs):
            first, second = (each.aval.shape for each in equation.invars)
            if are_paired(first, second, rows):
                found.append(_place_of(equation))
        for inner in programs_in(equation.params):
            # A condition comes before what its branches take.
            given = inputs[1:] if "branches" in equation.params else inputs
            if len(inner.invars) == len(given):
                results = _look(inner, given, rows, found)
                if len(results) == len(outputs):
                    outputs = results
        of_batch.update(
            variable
            for variable, is_so in zip(equation.outvars, outputs, strict=True)
            if is_so
        )
    return list(map(is_of_batch, jaxpr.outvars))


def programs_in(parameters: dict[str, Any]) -> list[Any]:
    """Returns the programs that an equation runs."""
    found = []
    for value in parameters.values():
        for each in value if isinstance(value, tuple | list) else [value]:
            each = getattr(each, "jaxpr", each)
            if hasattr(each, "eqns"):
                found.append(each)
    return found


def _place_of(equation: Any) -> str:
    stack = str(equation.source_info.name_stack)
    shape = equation.outvars[0].aval.shape
    return f"values of shape {shape}" + (stack and f" in {stack!r}")
