"""Kinds of files whose rows have numbers."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras._common.paths import is_remote
from hvd_keras.data import _record_index as record_index
from hvd_keras.data import _records
from hvd_keras.data import _remote_records as remote_records
from hvd_keras.data._array_record_files import ArrayRecordFile
from hvd_keras.data._numbering import Numbering
from hvd_keras.data._opened_files import FilesReader, OpenedFile, scanned
from hvd_keras.data._parquet_files import ParquetFile
from hvd_keras.data._record_index import Index, Scan
from hvd_keras.data._tar_files import TarFile


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
        open: Returns a reader of some, which may keep some blocks in memory.
        module: What it needs.
    """

    endings: tuple[str, ...]
    scan: Scan
    checked_scan: Scan
    open: Callable[..., Reader]
    module: str = ""


def _open_tfrecords(
    paths: Sequence[str],
    indexes: Sequence[Index],
    numbering: Numbering,
    num_kept: int,
) -> Reader:
    files = _records.Files([path.encode() for path in paths], indexes)
    return Reader(files.read, files)


def _by_python(
    name: str, module: str, file: type[OpenedFile], *endings: str
) -> Form:
    """Returns a form whose files Python reads."""

    def open_files(*of_files: Any) -> Reader:
        paths, indexes, numbering, num_kept = of_files
        files = FilesReader(paths, indexes, numbering, file, num_kept)
        return Reader(files.fetch, files)

    scan = functools.partial(scanned, open_file=file)
    checked = functools.partial(scan, checks=True)
    return Form(
        endings,
        Scan(name, scan),
        Scan(f"{name} checked", checked),
        open_files,
        module,
    )


FORMS = {
    "tfrecord": Form(
        (".tfrecord", ".tfrecords"),
        record_index.TFRECORDS,
        record_index.CHECKED_TFRECORDS,
        _open_tfrecords,
    ),
    "webdataset": _by_python("tar", "", TarFile, ".tar"),
    "parquet": _by_python("parquet", "pyarrow", ParquetFile, ".parquet"),
    "array_record": _by_python(
        "array_record",
        "array_record",
        ArrayRecordFile,
        ".array_record",
        ".arrayrecord",
    ),
}
_REMOTE = dataclasses.replace(
    FORMS["tfrecord"],
    scan=remote_records.RECORDS,
    checked_scan=remote_records.CHECKED_RECORDS,
)
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip")
_PART = re.compile(r"-\d+-of-\d+$")  # as TensorFlow Datasets names files


def form_of(paths: Sequence[str], kind: str | None) -> Form:
    """Returns the kind of some files.

    Raises:
        ValueError: There is no such kind, or the files are of several, or of
            none.
        ModuleNotFoundError: A package is missing.
    """
    if kind is None:
        wholes = [_PART.sub("", path) for path in paths]
        for path, whole in zip(paths, wholes, strict=True):
            if whole.endswith(_COMPRESSED):
                raise ValueError(
                    "`files` must have rows that can be read by their numbers, "
                    f"so they are not compressed as a whole. Received: {path}; "
                    "`hvd.data.files` deals out whole files."
                )
        kinds = set(map(_kind_of, wholes))
        if len(kinds) > 1:
            raise ValueError(
                "`files` must be of one kind. Received: "
                f"{', '.join(sorted(kinds))}; pass `kind`."
            )
        (kind,) = kinds
    if kind == "tfrecord" and any(map(is_remote, paths)):
        return _REMOTE
    if kind not in FORMS:
        raise ValueError(
            f"`kind` must be one of {', '.join(FORMS)}. Received: "
            f"kind={kind!r}."
        )
    form = FORMS[kind]
    if form.module and importlib.util.find_spec(form.module) is None:
        raise ModuleNotFoundError(
            f"Files of kind {kind!r} need the package {form.module}: run "
            f"`pip install {form.module}`.",
            name=form.module,
        )
    return form


def _kind_of(path: str) -> str:
    for kind, form in FORMS.items():
        if path.endswith(form.endings):
            return kind
    return "tfrecord"
