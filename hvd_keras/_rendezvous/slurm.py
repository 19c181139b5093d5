"""How Slurm writes lists of hosts, and of numbers of tasks."""

from __future__ import annotations

import re

_PART = re.compile(r"(?:\[[^\]]*\]|[^,\[\]])+")  # commas in brackets stay
_RANGE = re.compile(r"([^\[]*)\[([^\]]*)\](.*)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def hosts(text: str) -> list[str]:
    """Returns the hosts of a list such as `n[1-3,07],login`."""
    return [name for part in _PART.findall(text) for name in _expand(part)]


def tasks_per_host(text: str) -> list[int]:
    """Returns the numbers of a list such as `2(x3),1`; [] if it is none."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        match = _TASKS.fullmatch(part.strip())
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _expand(part: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        return [part]
    head, inside, tail = match.groups()
    names = []
    for one in inside.split(","):
        first, _, last = one.partition("-")
        for number in range(int(first), int(last or first) + 1):
            name = f"{head}{number:0{len(first)}d}"
            names += [name + end for end in _expand(tail)]
    return names
