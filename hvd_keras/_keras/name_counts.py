"""Keeps what we make out of Keras's count of names.

Keras numbers the objects that have no names of their own: the second `Dense` is
`dense_1`. Programs and files use these names, so a program must find the ones
that it has without us.

| Private name | Used to |
|---|---|
| `global_state.get_global_attribute` | read the counts, by prefix |
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

from hvd_keras._keras.lookup import private_module, require

_get_attribute = require(
    private_module("backend.common.global_state"),
    "get_global_attribute",
    ["name", "default", "set_to_default"],
)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Gives Keras its counts of names back at the end."""
    counts = _get_attribute(
        "object_name_uids", collections.defaultdict(int), set_to_default=True
    )
    before = dict(counts)
    try:
        yield
    finally:
        counts.clear()
        counts.update(before)
