"""Knows sums over rows, and changed gradients, by the program being traced."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import linear_call

from hvd_keras._backends.jax_products import programs_in
from hvd_keras.jax._tracers import behind, made_by, operands

# What of a sum is left by these is a sum.
_TERMS = frozenset(
    "add add_any sub neg convert_element_type reshape squeeze copy name "
    "broadcast_in_dim concatenate linear_call".split()
)
# What is made by others is linear if one operand alone comes from gradients.
_CURVED = frozenset(
    "sqrt rsqrt cbrt square sign abs max min clamp exp log tanh logistic pow "
    "integer_pow round floor ceil eq ne lt le gt ge is_finite reduce_max "
    "reduce_min argmax argmin sort top_k".split()
)
_OF_TWO = frozenset("mul dot_general conv_general_dilated".split())
_MARK = "hvd_keras/gradient_"
_numbers = itertools.count(1)


class _State(NamedTuple):
    """How a value depends on gradients.

    Attributes:
        loss: The number of the last loss whose gradients it depends on; 0:
            none.
        is_changed: Whether it is other than linear in them.
    """

    loss: int
    is_changed: bool = False


_NONE = _State(0)


def sums_of_rows(loss: Any, data: list[Any], known: Iterable[Any]) -> set[str]:
    """See `Backend.sums_of_rows`; for steps that are traced."""
    found: set[str] = set()
    parts = [x for x in map(behind, data) if getattr(x, "ndim", 0)]
    rows = {x.shape[0] for x in parts}
    sources = set(map(id, parts))
    seen = {id(behind(each)) for each in known}
    ahead = [behind(loss)]
    while ahead:
        value = ahead.pop()
        equation = made_by(value)
        if equation is None or id(value) in seen:
            continue
        seen.add(id(value))
        kind, inputs = equation.primitive.name, operands(equation)
        if kind in _TERMS:
            ahead += inputs
        elif kind in ("mul", "div"):
            ahead += _scaled(kind, inputs, rows)
            if kind == "div" and _is_ratio(inputs, sources):
                found.add("ratio")
        elif kind == "reduce_sum":
            (values,) = inputs
            is_of_rows = 0 in equation.params["axes"] and not _is_list(values)
            if is_of_rows and values.shape[0] in rows:
                if any(id(x) in sources for x in _inside([values])):
                    found.add("sum")
            else:
                ahead.append(values)
    return found


def _is_ratio(inputs: list[Any], sources: set[int]) -> bool:
    """Whether scalars are divided that both depend on values of the batch."""
    return all(
        getattr(each, "ndim", 0) == 0
        and any(id(x) in sources for x in _inside([each]))
        for each in inputs
    )


def _scaled(kind: str, inputs: list[Any], rows: set[int]) -> list[Any]:
    """Returns what a constant multiplies, if it is not the number of rows."""
    numbers = [x for x in inputs if _number(x) is not None]
    others = [x for x in inputs if _number(x) is None]
    if len(others) != 1 or (kind == "div" and others[0] is not inputs[0]):
        return []
    factor = _number(numbers[0]) or 0.0
    is_mean = kind == "div" and any(n and factor % n == 0 for n in rows)
    return [] if is_mean else others


def _number(value: Any) -> float | None:
    """Returns the scalar that a program has as a constant."""
    literal = getattr(getattr(value, "val", value), "val", value)
    try:
        return float(literal)
    except Exception:  # JAX has many types of errors for values not known
        return None


def _is_list(values: Any) -> bool:
    """Whether a vector was made of scalars, one after the other."""
    equation = made_by(values)
    return equation is not None and equation.primitive.name == "concatenate"


def marked(loss: Any) -> Any:
    """Returns a loss whose gradient, and what is made of it, can be known."""
    name = f"{_MARK}{next(_numbers)}"
    try:
        return linear_call(
            lambda _, x: x, lambda _, x: checkpoint_name(x, name), (), loss
        )
    except NotImplementedError:  # inside of `jax.vmap`
        return loss


def are_changed(gradients: list[Any], own: list[Any]) -> bool:
    """See `Backend.are_changed`; for steps that are traced."""
    states: dict[int, _State] = {}
    for each in _inside(gradients):
        equation = made_by(each)
        if equation is not None:
            inputs = [states.get(id(x), _NONE) for x in operands(equation)]
            states[id(each)] = _state(equation, inputs)
    return any(states.get(id(behind(x)), _NONE).is_changed for x in gradients)


def _inside(values: list[Any]) -> Iterator[Any]:
    """Yields values and all that they are made of, operands first."""
    seen: set[int] = set()
    ahead = [(each, False) for each in map(behind, values)]
    while ahead:
        value, is_ready = ahead.pop()
        if is_ready:
            yield value
        elif id(value) not in seen:
            seen.add(id(value))
            ahead.append((value, True))
            equation = made_by(value)
            if equation is not None:
                ahead += [(each, False) for each in operands(equation)]


def _state(equation: Any, inputs: list[_State]) -> _State:
    """Returns how what an equation makes depends on gradients."""
    state = max(inputs, default=_NONE)
    kind = equation.primitive.name
    # A gradient of an earlier loss is a number as any other.
    of_last = [each.loss == state.loss != 0 for each in inputs]
    if (
        (kind in _CURVED and any(of_last))
        or (kind in _OF_TWO and all(of_last))
        or (kind == "div" and of_last[1])
        or (kind == "select_n" and of_last[0])
    ):
        return _State(state.loss, is_changed=True)
    name = str(equation.params.get("name"))
    if kind == "name" and name.startswith(_MARK):
        return _State(int(name[len(_MARK) :]))
    for program in programs_in(equation.params):
        # A condition comes before what its branches take.
        given = inputs[1:] if "branches" in equation.params else inputs
        if len(program.invars) == len(given):
            state = max(state, _state_of_program(program, given))
    return state


def _state_of_program(program: Any, inputs: list[_State]) -> _State:
    states = dict(zip(program.invars, inputs, strict=True))

    def state_of(atom: Any) -> _State:
        is_literal = hasattr(atom, "val")
        return _NONE if is_literal else states.get(atom, _NONE)

    for equation in program.eqns:
        state = _state(equation, list(map(state_of, equation.invars)))
        states.update(dict.fromkeys(equation.outvars, state))
    return max(map(state_of, program.outvars), default=_NONE)
