"""Reads Python stacks as `faulthandler` and `traceback` print them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from hvd_keras._common.user_code import Frame, Stack, own_frame

_FRAME = re.compile(
    r'^\s*File "(?P<file>.*)", line (?P<line>[0-9]{1,9}),? in (.+)$'
)
_THREAD = re.compile(r"^(Current thread|Thread) 0x")


def of_error(text: str) -> Stack:
    """Returns the stack of a traceback; of several, of the last one."""
    last = text.rpartition("Traceback (most recent call last):")[2]
    return tuple(reversed(_frames(last.splitlines())))


def of_main_thread(text: str) -> list[Stack]:
    """Returns the stacks of the main thread, from all dumps in a file."""
    found: list[list[str]] = []
    was_blank = False
    for line in text.splitlines():
        if _THREAD.match(line):
            # Within a dump a blank line goes before each thread but the first;
            # the main thread is the oldest, and comes last.
            if was_blank and found:
                found[-1] = []
            else:
                found.append([])
        elif found:
            found[-1].append(line)
        was_blank = not line.strip()
    stacks = (tuple(_frames(lines)) for lines in found)
    return [stack for stack in stacks if stack]


def _frames(lines: Iterable[str]) -> list[Frame]:
    matches = filter(None, map(_FRAME.match, lines))
    return [Frame(match["file"], int(match["line"])) for match in matches]


def usual_frame(
    stacks: Iterable[Stack], foreign: Sequence[str]
) -> Frame | None:
    """Returns where a thread is in the user's code in most of its stacks."""
    own = Counter(own_frame(stack, foreign) for stack in stacks)
    own.pop(None, None)
    return own.most_common(1)[0][0] if own else None
