"""Replaces what `replacement_table` lists in other packages.

Other modules replace by `replace` alone, and only what has a row there. They do
so as soon as both hvd_keras and the package have been imported, whichever comes
first.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from hvd_keras._common.replacement_table import TABLE, Row


class Replacement(NamedTuple):
    """One attribute that was replaced."""

    row: Row
    owner: Any
    name: str
    original: Any  # None if there was no such attribute
    made: Any

    def restore(self) -> None:
        """Puts the original back, unless somebody has replaced ours."""
        if vars(self.owner).get(self.name) is self.made:
            if self.original is None:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self.original)
        del _done[self.owner, self.name, self.row.home]


_done: dict[tuple[Any, str, str], Replacement] = {}


def lines() -> Iterator[str]:
    """Yields the text of the table."""
    for row in TABLE:
        yield f"{row.owner}: {', '.join(row.names.split())}"
        yield f"  to {row.why}"
        yield f"  without: {row.without}"
        yield f"  in hvd_keras.{row.home}; seen with {row.seen}"


def replacements() -> Iterator[Replacement]:
    """Yields what is replaced in this process, in that order."""
    yield from list(_done.values())


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces an attribute of another package. A second call does nothing.

    A function keeps name, signature and text of the one that it replaces,
    unless it has others of its own.

    Args:
        owner: The class or module that has the attribute.
        name: The attribute.
        make: Gets the original, None if there is none, and returns what comes
            in its place. The module that defines it replaces each attribute
            once.

    Raises:
        LookupError: The table has no such row.
    """
    function = make
    while isinstance(function, functools.partial):
        function = function.func
    home = function.__module__.partition(".")[2]
    key = owner, name, home
    if key in _done:
        return
    row = _row_of(owner, name, home)
    # Not `getattr`, for which somebody else may have put there what is no
    # function.
    original = vars(owner).get(name, getattr(owner, name, None))
    made = make(original)
    if inspect.isfunction(made) and not (
        {"__wrapped__", "__signature__"} & vars(made).keys()
    ):
        functools.update_wrapper(made, original)
    setattr(owner, name, made)
    _done[key] = Replacement(row, owner, name, original, made)


def replace_calls(
    package: str,
    table: Iterable[tuple[str, str]],
    make: Callable[[str, Any], Any],
) -> None:
    """Replaces functions of a package that has been imported.

    Args:
        package: Its name.
        table: Modules or classes, and names of functions in them. Those of
            other packages are left out.
        make: Gets the place of a function, without the package, and the
            function; returns what comes in its place.
    """
    for path, names in table:
        home, _, path = path.partition(".")
        if home != package:
            continue
        owner, whole = sys.modules[package], package
        for part in path.split(".") if path else ():
            owner, whole = getattr(owner, part), f"{whole}.{part}"
            if inspect.ismodule(owner):
                # `import tensorflow.io` would make another module, and put it
                # in the place of this one.
                sys.modules.setdefault(whole, owner)
        for name in names.split():
            place = f"{path}.{name}" if path else name
            replace(owner, name, functools.partial(make, place))


def _row_of(owner: Any, name: str, home: str) -> Row:
    for row in TABLE:
        if row.home == home and name in row.names.split():
            if row.owner.endswith(".*"):  # all modules of a package
                package = row.owner.removesuffix("*")
                if f"{owner.__name__}.".startswith(package):
                    return row
                continue
            if row.owner.partition(".")[0] not in sys.modules:
                continue
            found = _find(row.owner)
            if found is owner or (
                isinstance(found, type)
                and isinstance(owner, type)
                and (issubclass(found, owner) or issubclass(owner, found))
            ):
                return row
    where = getattr(owner, "__qualname__", owner.__name__)
    raise LookupError(
        f"hvd_keras.{home} replaces `{where}.{name}`, which has no row in "
        "hvd_keras._common.replacement_table.TABLE."
    )


def _find(path: str) -> Any:
    """Returns what a path names in the packages that are imported."""
    home, names = path, list[str]()
    while home not in sys.modules:
        home, _, name = home.rpartition(".")
        names.insert(0, name)
    return functools.reduce(getattr, names, sys.modules[home])
