"""What the tracers of a program are made of.

| Private name of JAX | Used to |
|---|---|
| `primal` of a tracer | look behind transformations |
| `parent` of a tracer, its `in_tracers` | know what has made a value |

Where JAX has others, nothing is found.
"""

from __future__ import annotations

from typing import Any


def behind(value: Any) -> Any:
    """Returns the value that a transformation has wrapped."""
    while hasattr(value, "primal"):
        value = value.primal
    return value


def made_by(value: Any) -> Any:
    """Returns the equation that has made a value; None: it was given."""
    return getattr(value, "parent", None)


def operands(equation: Any) -> list[Any]:
    return list(map(behind, equation.in_tracers))
