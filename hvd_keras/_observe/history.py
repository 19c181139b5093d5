"""What a rank would call next, judged by what it has called before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Key = tuple[int, str]  # process set, name

_CONTEXT = 16  # calls that are compared
_AHEAD = 64  # calls that are foretold


def next_calls(calls: Sequence[Key]) -> Iterator[Key]:
    """Yields the calls that should follow, as they did earlier.

    Of all earlier places where the same call was the last one, that place
    counts before which most calls were the same; of several the latest.

    Args:
        calls: What the rank has called, in order.
    """
    place = _same_place(calls)
    if place < 0:
        return
    period = len(calls) - place
    for step in range(_AHEAD):
        yield calls[place + step % period]


def _same_place(calls: Sequence[Key]) -> int:
    best, best_length = -1, 0
    for place in range(len(calls) - 1, 0, -1):
        length = 0
        while (
            length < min(_CONTEXT, place)
            and calls[place - 1 - length] == calls[-1 - length]
        ):
            length += 1
        if length > best_length:
            best, best_length = place, length
        if length == _CONTEXT:
            break
    return best
