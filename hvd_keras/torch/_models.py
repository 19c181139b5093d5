"""Names the parameter in which the models of ranks differ."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from hvd_keras.exceptions import MismatchError

_TENSOR = re.compile(r"of tensor (\d+)")


@contextlib.contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Runs a call whose tensors are these parameters.

    Raises:
        MismatchError: Ranks have other tensors. It names the parameter, and the
            cure.
    """

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"of {names[number]!r}" if number < len(names) else found[0]

    try:
        yield
    except MismatchError as error:
        raise MismatchError(
            f"{_TENSOR.sub(named, str(error))}. Build the same model on each "
            "rank: nothing in it may depend on `hvd.rank()`, or on what a "
            "rank's own rows have, such as their columns or classes"
        ) from None
