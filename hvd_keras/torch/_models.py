"""Names the parameter in which the models of ranks differ."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from hvd_keras._common.training_signs import CURE_OF_MODELS
from hvd_keras.exceptions import MismatchError

_TENSOR = re.compile(r"of tensor (\d+)")
_OF_MODELS = re.compile(r"disagree on the (shape|dtype|number)")


@contextlib.contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Runs a call whose tensors are these parameters.

    Raises:
        MismatchError: Ranks disagree. Where their tensors differ, it names the
            parameter, and the cure.
    """

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return f"of {names[number]!r}" if number < len(names) else found[0]

    try:
        yield
    except MismatchError as error:
        if not _OF_MODELS.search(str(error)):
            raise
        text = _TENSOR.sub(named, str(error))
        raise MismatchError(f"{text}. {CURE_OF_MODELS}") from None
