"""Notices that this process trains a model, by whatever loop."""

from __future__ import annotations

import dataclasses
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from hvd_keras._common import user_code

CURE_OF_MODELS = (
    "Build the same model on each rank: nothing in it may depend on "
    "`hvd.rank()`, or on what a rank's own rows have, such as their columns or "
    "classes"
)


@dataclasses.dataclass(frozen=True)
class Training:
    """The first sign of it.

    Attributes:
        what: The call: `fit`, or that of an optimizer.
        place: The line of the user's code; "" if there is none.
        cure: What makes ranks train together there.
    """

    what: str
    place: str
    cure: str
    is_of_others: bool  # torch or JAX may reduce the gradients
    reduces: bool  # the optimizer does


@dataclasses.dataclass(frozen=True)
class Apart:
    """Ranks that have begun to train with other values.

    Attributes:
        text: What to tell the user.
        until: How many bytes this process has broadcast or got, if all values
            were broadcast since.
    """

    text: str
    until: int


first: Training | None = None
# Of a process that makes its updates by hand.
gradient: Training | None = None
# Those that train, their classes, and what they train.
optimizers: list[tuple[weakref.ref[Any], str, list[weakref.ref[Any]]]] = []
num_changes = 0  # of what optimizers train, by something else
# Called before something else than an optimizer sets what one trains.
before_change: list[Callable[[], None]] = []
# Called at the first sign of either kind.
at_sign: list[Callable[[], None]] = []
at_first: list[Callable[[Training], None]] = []
# Called with what functions of JAX compute gradients for, the gradients, and
# whether the functions have no other arguments.
at_gradients: list[Callable[[Any, Any, bool], None]] = []
# Called with the ranks that average gradients of JAX as they are.
at_plain_mean: list[Callable[[Any], None]] = []
apart: Apart | None = None
has_broadcast_weights = False  # so ranks mean to train one model
# Elements of tensors that were reduced by calls, while it trains.
reduced_sizes: set[int] = set()
has_transform = False  # the program made a transform of optax that reduces
has_own_sets = False  # ranks meet in sets that the program has made
trains_on_share = False  # a `fit` had rows that `hvd.shard` has dealt out
place_of_fit = ""  # where the running `fit` was called; "": none runs


def note(what: str, cure: str, *, reduces: bool = False) -> None:
    """Notes a call that trains; the first one counts, and is told on."""
    global first
    if first is None:
        first = _sign(what, cure, reduces)
        for call in at_first:
            call(first)


def forget() -> None:
    """Forgets the first call: it has failed before it has trained anything."""
    global first
    first = None


def note_gradient(what: str, cure: str) -> None:
    """Notes the first call that computes gradients of a model."""
    global gradient
    if gradient is None:
        gradient = _sign(what, cure, False)


def _sign(what: str, cure: str, reduces: bool) -> Training:
    if first is None and gradient is None:
        for look in at_sign:
            look()
    is_of_others = _is_linked_by_others()
    return Training(what, user_code.place(), cure, is_of_others, reduces)


def note_reduced(size: int | None) -> None:
    """Notes a tensor that the user's own call reduces, maybe a gradient.

    Args:
        size: Its elements; None: unknown.
    """
    if size is not None and (first is not None or gradient is not None):
        reduced_sizes.add(size)


def reduces_by_hand() -> bool:
    """Whether own calls have reduced all that some optimizer trains."""
    for _, _, refs in optimizers:
        alive = [one for ref in refs if (one := ref()) is not None]
        sizes = {math.prod(map(int, one.shape)) for one in alive}
        if sizes and sizes <= reduced_sizes:
            return True
    return False


def note_optimizer(
    optimizer: Any, find: Callable[[Any], Iterable[Any]]
) -> None:
    """Notes an optimizer that trains.

    Args:
        optimizer: The optimizer.
        find: Gets it, and returns the variables or parameters of floating-point
            numbers that it trains and that all ranks have.
    """
    if any(ref() is optimizer for ref, _, _ in optimizers):
        return
    refs = list(map(weakref.ref, find(optimizer)))
    known = set(map(id, refs))  # an object has one of them
    # A program may make any number of optimizers for the same weights.
    optimizers[:] = [
        one
        for one in optimizers
        if one[0]() is not None
        or any(ref() is not None and id(ref) not in known for ref in one[2])
    ]
    optimizers.append((weakref.ref(optimizer), type(optimizer).__name__, refs))


def note_change() -> None:
    """Notes that something else than an optimizer is about to set weights."""
    global num_changes
    num_changes += 1
    for look in before_change:
        look()


def note_broadcast(num_bytes: int) -> None:
    """Notes how many bytes this process has broadcast or got."""
    global apart
    if apart is not None and num_bytes >= apart.until:
        apart = None


def cure_of_whole_data() -> str:
    """Says what deals rows out, in what the program has imported."""
    if "keras" in sys.modules:
        return "deal the rows out by `hvd.shard`"
    if "torch" in sys.modules:
        sampler = "DistributedSampler(data, hvd.size(), hvd.rank())"
        return f"deal the rows out by `{sampler}`"
    return "let each rank take its rows, as by `x[hvd.rank()::hvd.size()]`"


def _is_linked_by_others() -> bool:
    """Whether the ranks are processes of torch's or JAX's own communication."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return True
    jax = sys.modules.get("jax.distributed")
    return jax is not None and bool(jax.is_initialized())
