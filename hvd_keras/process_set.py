"""Process sets: some of the ranks, which run their own collectives.

`init(process_sets=...)` makes sets. With "dynamic" they can be made later too.
Every rank of the job, member or not, takes part in making and removing a set.
Collectives of sets without a common rank run at the same time.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from hvd_keras._common import training_signs
from hvd_keras._job import registration, state
from hvd_keras._native import gpu
from hvd_keras.exceptions import InvalidArgumentError


class ProcessSet:
    """Some ranks of the job; registered with `init` or `add_process_set`.

    Two sets are equal if they have the same ranks.

    Args:
        ranks: Global ranks, without repetition, in any order.

    Raises:
        InvalidArgumentError: `ranks` is not a list of different ranks.
        NotImplementedError: `ranks` is an MPI communicator.

    Example, on 4 ranks:

    >>> even = hvd.ProcessSet([0, 2])
    >>> hvd.init(process_sets=[even])
    >>> even.process_set_id, even.size(), even.included()
    (1, 2, True)
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.process_set_id: int | None = None
        self._ranks: list[int] | None = _to_ranks(ranks)

    @property
    def ranks(self) -> list[int] | None:
        """The global ranks, ascending; None: all ranks, before `init()`."""
        return None if self._ranks is None else list(self._ranks)

    def size(self) -> int | None:
        """The number of ranks; None while the set is not registered."""
        members = self._members()
        return None if members is None else len(members[0])

    def rank(self) -> int | None:
        """This rank's index in `ranks`; None while not registered.

        Raises:
            InvalidArgumentError: This rank is not a member.
        """
        members = self._members()
        if members is None:
            return None
        ranks, rank = members
        if rank not in ranks:
            raise InvalidArgumentError(
                f"`rank()` must be called on a member of process set "
                f"{self.process_set_id} (ranks {_join(ranks)}). Received: a "
                f"call on rank {rank}."
            )
        return ranks.index(rank)

    def included(self) -> bool | None:
        """Whether this rank is a member; None while not registered."""
        members = self._members()
        return None if members is None else members[1] in members[0]

    def _members(self) -> tuple[list[int], int] | None:
        registry = _registry
        if registry is None or self.process_set_id is None:
            return None
        return (self._ranks or [], registry.rank)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self._ranks == other._ranks

    def __hash__(self) -> int:
        # A hash must not change, and the ranks of `global_process_set` do.
        return hash(ProcessSet)

    def __repr__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, "
            f"ranks={self._ranks})"
        )


def _make_global() -> ProcessSet:
    made = ProcessSet.__new__(ProcessSet)  # `init` sets its ranks
    made.process_set_id = 0
    made._ranks = None
    return made


global_process_set = _make_global()


@dataclasses.dataclass
class _Registry:
    """The sets of the job that this process is in."""

    rank: int
    size: int
    is_dynamic: bool
    connects_gpus: bool  # `init` has connected them
    sets: dict[int, ProcessSet]


_registry: _Registry | None = None
_lock = threading.Lock()  # one thread at a time adds or removes
# Ids are never reused in a process: a traced function may still hold an id, and
# must not run on another set.
_next_id = 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a set; every rank of the job calls this with the same ranks.

    Args:
        process_set: The set, or its ranks.

    Returns:
        The set, which now has a `process_set_id`. It is `process_set` itself if
        that is a `ProcessSet`.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: Sets are fixed in this job. Or, on every rank:
            `process_set` has no ranks, ranks that do not exist, or the same
            ranks as a registered set.
        ProcessSetMismatchError: The ranks made different calls; a `ValueError`.
        PeerLostError: A rank died or left.

    Example, on 4 ranks after `hvd.init(process_sets="dynamic")`:

    >>> even = hvd.add_process_set([0, 2])
    """
    with _lock:
        registry = _dynamic_registry("add_process_set")
        return _register(registry, "add_process_set", [process_set])[0]


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set; every rank of the job calls this with the same one.

    Pending calls on the set fail with `ShutdownError`. The object loses its id,
    which is not used again. It may be added again and then gets a new one.

    Args:
        process_set: A registered set.

    Returns:
        True; False for the global set and for one that is not registered.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: Sets are fixed in this job.
        ProcessSetMismatchError: The ranks made different calls; a `ValueError`.
        PeerLostError: A rank died or left.
    """
    with _lock:
        registry = _dynamic_registry("remove_process_set")
        removed_id = getattr(process_set, "process_set_id", 0) or None
        failure = _not_a_set(process_set)
        call = f"remove_process_set(id {removed_id})"
        registration.exchange(call, failure)
        if removed_id is None:
            return False
        registration.remove_one(removed_id)
        for known in (process_set, registry.sets.pop(removed_id)):
            known.process_set_id = None
        return True


def process_set_by_id(process_set_id: int) -> ProcessSet:
    """Returns the registered set with that id; 0: `global_process_set`.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: There is no such set.
    """
    if process_set_id == 0:
        return global_process_set
    found = _registry_of("process_set_by_id").sets.get(process_set_id)
    if found is None:
        raise InvalidArgumentError(
            f"`process_set_id` must be the id of a registered process set. "
            f"Received: process_set_id={process_set_id}, which does not exist."
        )
    return found


def with_ranks(ranks: Sequence[int]) -> ProcessSet:
    """Returns the registered set of these ranks, or a new set."""
    wanted = ProcessSet(ranks)
    known = [] if _registry is None else list(_registry.sets.values())
    return next((one for one in known if one == wanted), wanted)


def has_own_sets() -> bool:
    """Whether ranks may meet in sets other than that of all ranks."""
    return _registry is not None and len(_registry.sets) > 1


def register_alike(lists: Sequence[Sequence[int]]) -> list[ProcessSet]:
    """Returns sets of these ranks, also in a job whose sets are fixed.

    Every rank of the job calls this with the same lists. What is registered
    already stays.
    """
    with _lock:
        registry = _registry_of("register_alike")
        sets = list(map(with_ranks, lists))
        new = [each for each in sets if each.process_set_id is None]
        if new:
            _register(registry, "register_alike", new)
        return sets


# ---- For basics.py ----


def parse(value: Any, size: int) -> list[ProcessSet]:
    """Returns the sets in `init`'s argument `process_sets`; registers none.

    Raises:
        InvalidArgumentError: `init` does not take this value on `size` ranks.
    """
    if value is None or (isinstance(value, str) and value == "dynamic"):
        return []
    if callable(value):
        value = value(size)
    if isinstance(value, (str, ProcessSet)) or not isinstance(value, Iterable):
        raise InvalidArgumentError(
            '`process_sets` must be None, "dynamic", a list of ProcessSet or '
            "lists of ranks, or a function from the number of ranks to such a "
            f"list. Received: {value!r}."
        )
    return _check_new(list(value), size, [list(range(size))])


def attach(rank: int, size: int, *, is_dynamic: bool) -> None:
    """Notes that this process has joined a job; registers the global set."""
    global _registry
    global_process_set._ranks = list(range(size))
    _registry = _Registry(
        rank, size, is_dynamic, False, {0: global_process_set}
    )


def note_gpus_connected() -> None:
    """Lets sets made from now on split off the communicator of all ranks."""
    _registry_of("init").connects_gpus = True


def register_static(sets: Sequence[ProcessSet]) -> None:
    """Registers the sets given to `init`, on all ranks or on none."""
    if sets:
        with _lock:
            _register(_registry_of("init"), "init", sets)


def detach() -> None:
    """Notes that this process has left its job; unregisters all sets."""
    global _registry
    registry, _registry = _registry, None
    if registry is not None:
        for known in registry.sets.values():
            known.process_set_id = None
    global_process_set.process_set_id = 0
    global_process_set._ranks = None


# ---- Registration, on all ranks together ----


def _register(
    registry: _Registry,
    what: str,
    candidates: Sequence[ProcessSet | Sequence[int]],
) -> list[ProcessSet]:
    global _next_id
    sets: list[ProcessSet] = []
    call = what
    failure: Exception | None = None
    with registration.open_segments() as segments:
        try:
            known = [known._ranks or [] for known in registry.sets.values()]
            sets = _check_new(candidates, registry.size, known)
            shown = ", ".join(str(one.ranks) for one in sets)
            call = f"{what}({shown})"
            segments.make([one._ranks or [] for one in sets], registry.rank)
        except Exception as error:
            failure = error
        answers = registration.exchange(
            call,
            failure,
            first_id=_next_id,
            segments=segments.made,
            links=segments.links,
        )
        first_id = max(answer["first_id"] for answer in answers)
        _next_id = first_id + len(sets)
        by_id = dict(zip(range(first_id, _next_id), sets, strict=True))
        registration.add_to_core(
            registry.rank,
            {new_id: one._ranks or [] for new_id, one in by_id.items()},
            answers,
            segments,
        )
    if registry.connects_gpus:
        try:
            gpu.split(by_id)
        except BaseException:
            registration.remove_from_core(by_id)
            raise
    for new_id, one in by_id.items():
        one.process_set_id = new_id
        registry.sets[new_id] = one
    training_signs.has_own_sets |= bool(sets)
    return sets


# ---- Checks of this rank alone ----


def _registry_of(caller: str) -> _Registry:
    registry = _registry
    if registry is None:
        raise state.not_initialized(caller)
    return registry


def _dynamic_registry(caller: str) -> _Registry:
    registry = _registry_of(caller)
    if not registry.is_dynamic:
        raise InvalidArgumentError(
            f'`{caller}()` needs `init(process_sets="dynamic")`, or '
            "HVD_DYNAMIC_PROCESS_SETS=1. Received: `init()` without it, so the "
            "process sets are fixed."
        )
    return registry


def _not_a_set(value: Any) -> Exception | None:
    if isinstance(value, ProcessSet):
        return None
    return InvalidArgumentError(
        f"`process_set` must be a ProcessSet. Received: {value!r}."
    )


def _check_new(
    candidates: Sequence[Any], size: int, known: Iterable[list[int]]
) -> list[ProcessSet]:
    """Returns the candidates as sets; raises if one cannot be registered."""
    seen = list(known)
    sets: list[ProcessSet] = []
    for candidate in candidates:
        is_set = isinstance(candidate, ProcessSet)
        one = candidate if is_set else ProcessSet(candidate)
        ranks = one._ranks
        if ranks is None or ranks in seen or one.process_set_id is not None:
            raise InvalidArgumentError(
                "A process set must have other ranks than all registered sets. "
                f"Received: ranks {_join(ranks or range(size))} a second time."
            )
        if ranks[-1] >= size:
            raise InvalidArgumentError(
                f"The ranks of a process set must be in [0, {size}). "
                f"Received: {ranks}."
            )
        seen.append(ranks)
        sets.append(one)
    return sets


def _to_ranks(ranks: Any) -> list[int]:
    if hasattr(ranks, "Get_rank"):
        raise NotImplementedError(
            "A process set must be given as a list of ranks: this build has "
            "no MPI. Received: an MPI communicator."
        )
    try:
        members = sorted(operator.index(rank) for rank in ranks)
        is_bool = any(isinstance(rank, bool) for rank in ranks)
    except TypeError:
        members, is_bool = [], False
    repeats = len(set(members)) < len(members)
    if not members or is_bool or repeats or members[0] < 0:
        raise InvalidArgumentError(
            "The ranks of a process set must be a list of one or more ranks, "
            f"each once. Received: {ranks!r}."
        )
    return members


def _join(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
