"""Kinds of files whose rows have numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras.data import _record_index as record_index
from hvd_keras.data import _records
from hvd_keras.data._numbering import Numbering
from hvd_keras.data._record_index import Index, Scan


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads rows by their numbers.

    Args:
        fetch: Returns the rows of numbers, of any shape, in a graph.
        source: What it needs, held as long as this.
    """

    fetch: Callable[[Any], Any]
    source: Any


@dataclasses.dataclass(frozen=True)
class Form:
    """A kind of files.

    Args:
        endings: Those of their names.
        scan: Makes the index of one.
        checked_scan: The same, and leaves out what is damaged.
        open: Returns a reader of some.
    """

    endings: tuple[str, ...]
    scan: Scan
    checked_scan: Scan
    open: Callable[[Sequence[str], Sequence[Index], Numbering], Reader]


def _open_tfrecords(
    paths: Sequence[str], indexes: Sequence[Index], numbering: Numbering
) -> Reader:
    files = _records.Files([path.encode() for path in paths], indexes)
    return Reader(files.read, files)


FORMS = {
    "tfrecord": Form(
        (".tfrecord", ".tfrecords"),
        record_index.TFRECORDS,
        record_index.CHECKED_TFRECORDS,
        _open_tfrecords,
    ),
}


def form_of(paths: Sequence[str], kind: str | None) -> Form:
    """Returns the kind of some files.

    Raises:
        ValueError: There is no such kind, or the files are of several.
    """
    if kind is None:
        kinds = {_kind_of(path) for path in paths}
        if len(kinds) > 1:
            raise ValueError(
                "`files` must be of one kind. Received: "
                f"{', '.join(sorted(kinds))}; pass `kind`."
            )
        (kind,) = kinds
    if kind not in FORMS:
        raise ValueError(
            f"`kind` must be one of {', '.join(FORMS)}. Received: "
            f"kind={kind!r}."
        )
    return FORMS[kind]


def _kind_of(path: str) -> str:
    for kind, form in FORMS.items():
        if path.endswith(form.endings):
            return kind
    return "tfrecord"
