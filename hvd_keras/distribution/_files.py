"""Files of a script that knows nothing of ranks: each comes once.

One rank saves a model for all that name the same file; the ranks of a host
download one after the other.
"""

from __future__ import annotations

import fcntl
import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from hvd_keras import basics, objects
from hvd_keras._common import paths
from hvd_keras._common.replacements import replace
from hvd_keras._job import written_files
from hvd_keras._keras.calls import running_calls
from hvd_keras._keras.lookup import owner_of, private_module
from hvd_keras.callbacks._rank_zero import on_rank_zero
from hvd_keras.distribution import _keras_api, _turns
from hvd_keras.exceptions import HvdError

Function = Callable[..., Any]

_is_writing = False  # for all ranks


def share() -> None:
    """Lets one rank save models for all, and a host download once."""
    for method in ("save", "save_weights", "export"):
        replace(owner_of(method), method, _by_one_rank)
    library = private_module("saving.saving_api")
    for name in ("save_model", "save_weights"):
        _replace_everywhere(name, getattr(library, name), _by_one_rank)
    get_file = private_module("utils.file_utils").get_file
    _replace_everywhere("get_file", get_file, _one_at_a_time)
    written_files.watch(clocks_alone=True)


def _replace_everywhere(
    name: str, original: Function, make: Callable[[Function], Function]
) -> None:
    """Replaces a function in all modules of Keras that have it."""
    for module in list(sys.modules.values()):
        home = getattr(module, "__name__", "")
        is_keras = home.partition(".")[0] == "keras"
        if is_keras and vars(module).get(name) is original:
            replace(module, name, make)


def _by_one_rank(original: Function) -> Function:
    """Lets the first of the ranks that name the same file write it."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def save(*args: Any, **kw: Any) -> None:
        # One may call another. Callbacks save on the ranks that they choose.
        is_shared = not _is_writing and not running_calls()
        if not is_shared or _keras_api.distribution() is None:
            original(*args, **kw)
            return

        def write() -> None:
            global _is_writing
            _is_writing = True
            try:
                original(*args, **kw)
            finally:
                _is_writing = False

        name = original.__qualname__
        with _turns.ranks_meet():
            place = _place_of(signature.bind(*args, **kw).arguments)
            places = objects.allgather_object(place, name=f"{name}/places")
            if place is not None and set(places) == {place}:
                on_rank_zero(name, write)
            else:
                _write_own(name, write, places)

    return save


def _place_of(arguments: dict[str, Any]) -> str | None:
    """Returns the file that a call writes; None: it is in memory."""
    path = arguments.get("filepath")
    if not isinstance(path, str | os.PathLike):
        return None
    return paths.real_path(os.fspath(path))


def _write_own(
    name: str, write: Callable[[], None], places: list[str | None]
) -> None:
    """Writes what no rank before this one writes; all wait for all.

    A name is another one on each rank if a temporary folder, the time or the
    process is in it.
    """
    rank, mine = basics.rank(), places[basics.rank()]
    first = rank if mine is None else places.index(mine)
    error: Exception | None = None
    if first == rank:
        try:
            write()
        except Exception as raised:
            error = raised
    text = None if error is None else f"{type(error).__name__}: {error}"
    texts = objects.allgather_object(text, name=f"{name}/written")
    if error is not None:
        raise error
    if texts[first] is not None:
        raise HvdError(
            f"{name} works on rank {first} for the ranks that name the same "
            f"file, and must succeed there. Received: {texts[first]}"
        )


def _one_at_a_time(original: Function) -> Function:
    @functools.wraps(original)
    def get_file(*args: Any, **kw: Any) -> Any:
        # Archives are unpacked by each rank.
        bound = inspect.signature(original).bind(*args, **kw).arguments
        if bound.get("extract") or bound.get("untar"):
            _turns.wait()
        # The next rank of this host finds what the first one has got. A lock
        # may be held for longer than a collective may wait.
        home = os.open(os.path.expanduser("~"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(home, fcntl.LOCK_EX)
            return original(*args, **kw)
        finally:
            os.close(home)

    return get_file
