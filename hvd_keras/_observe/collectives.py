"""The collectives of a job: the calls of all ranks, put together."""

from __future__ import annotations

import dataclasses

import numpy as np

from hvd_keras._observe.intervals import Array
from hvd_keras._observe.recording import CALL, STATES, Recording

# One collective. `first_ns` and `last_ns` are when its first and its last rank
# came: a rank has come when it has submitted all its calls of the collective.
# `late_ns` is how long after the median of the other ranks the last one came;
# 0 with one rank. `begun_ns` is when the last rank began, `began_late_ns` how
# long after the median of the others, as of a rank that was stopped when it had
# come. `is_whole`: all ranks of the process set are in the record.
COLLECTIVE = np.dtype(
    [
        ("process_set", "i4"),
        ("collective_id", "u8"),
        ("kind", "u1"),
        ("on_gpu", "?"),
        ("is_whole", "?"),
        ("num_ranks", "i8"),
        ("num_calls", "i8"),
        ("num_tensors", "i8"),
        ("num_bytes", "i8"),
        ("first_ns", "i8"),
        ("last_ns", "i8"),
        ("first_begun_ns", "i8"),
        ("begun_ns", "i8"),
        ("ended_ns", "i8"),
        ("last_rank", "i4"),
        ("late_ns", "i8"),
        ("last_to_begin", "i4"),
        ("began_late_ns", "i8"),
    ]
)
# One rank in one collective.
ARRIVAL = np.dtype(
    [
        ("collective", "i8"),
        ("rank_index", "i4"),
        ("arrived_ns", "i8"),
        ("begun_ns", "i8"),
    ]
)


@dataclasses.dataclass(frozen=True)
class Collectives:
    """The collectives that ended, and who came to them when."""

    # CALL with "rank_index" (a place in `Recording.ranks`), "name_id" (the same
    # on all ranks) and "collective" (a place in `rows`), by rank and time.
    calls: Array
    bounds: Array  # calls[bounds[i] : bounds[i + 1]] are those of rank index i
    names: list[str]  # by name_id
    rows: Array  # COLLECTIVE, by process set and number
    arrivals: Array  # ARRIVAL, by collective and time

    def of_rank(self, index: int) -> slice:
        """Returns where the calls of a rank are, by its rank index."""
        return slice(self.bounds[index], self.bounds[index + 1])


_OWN_CALL = np.dtype(
    [
        *((name, CALL[name]) for name in CALL.names or ()),
        ("rank_index", "i4"),
        ("name_id", "i8"),
        ("collective", "i8"),
    ]
)


def shared(collectives: Collectives) -> Array:
    """Returns where collectives are that several ranks came to, all seen."""
    rows = collectives.rows
    return np.flatnonzero(rows["is_whole"] & (rows["num_ranks"] > 1))


def all_calls(recording: Recording) -> tuple[Array, list[str]]:
    """Returns the calls of all ranks, by rank and time, and their names."""
    ids: dict[str, int] = {}
    tables = []
    for index, one in enumerate(recording.ranks):
        table = np.zeros(len(one.calls), _OWN_CALL)
        for field in CALL.names or ():
            table[field] = one.calls[field]
        table["rank_index"] = index
        own = [ids.setdefault(name, len(ids)) for name in one.names]
        table["name_id"] = np.array(own, np.int64)[one.calls["name"]]
        tables.append(table[np.argsort(table["enqueued_ns"], kind="stable")])
    calls = np.concatenate(tables) if tables else np.zeros(0, _OWN_CALL)
    return calls, list(ids)


def collect(recording: Recording) -> Collectives:
    """Returns the collectives of a recording that ended."""
    calls, names = all_calls(recording)
    calls = calls[
        (calls["collective_id"] > 0)
        & (calls["enqueued_ns"] > 0)
        & (calls["begun_ns"] > 0)
        & (calls["state"] == STATES.index("done"))
    ]
    sets, ids = calls["process_set"], calls["collective_id"]
    order = np.lexsort((calls["rank_index"], ids, sets))
    ordered = calls[order]
    is_first = _changes(ordered["process_set"], ordered["collective_id"])
    collective = np.cumsum(is_first) - 1
    calls["collective"][order] = collective
    ordered["collective"] = collective
    arrivals = _arrivals(ordered)
    rows = _rows(ordered, np.flatnonzero(is_first), arrivals, recording)
    bounds = np.searchsorted(
        calls["rank_index"], np.arange(len(recording.ranks) + 1)
    )
    return Collectives(calls, bounds, names, rows, arrivals)


def _changes(*columns: Array) -> Array:
    """Where the rows of sorted columns differ from those before them."""
    is_new = np.ones(len(columns[0]), bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], 0)
    return is_new


def _arrivals(ordered: Array) -> Array:
    is_first = _changes(ordered["collective"], ordered["rank_index"])
    starts = np.flatnonzero(is_first)
    arrivals = np.zeros(len(starts), ARRIVAL)
    arrivals["collective"] = ordered["collective"][starts]
    arrivals["rank_index"] = ordered["rank_index"][starts]
    if len(starts):
        for field, of in (("arrived_ns", "enqueued_ns"), ("begun_ns",) * 2):
            arrivals[field] = np.maximum.reduceat(ordered[of], starts)
    order = np.lexsort((arrivals["arrived_ns"], arrivals["collective"]))
    return arrivals[order]


def _rows(
    ordered: Array, starts: Array, arrivals: Array, recording: Recording
) -> Array:
    rows = np.zeros(len(starts), COLLECTIVE)
    if not len(starts):
        return rows
    for field in ("process_set", "collective_id", "kind", "on_gpu"):
        rows[field] = ordered[field][starts]
    # Ranks may give different bytes (an allgather): the mean.
    num_ranks = np.bincount(arrivals["collective"], minlength=len(rows))
    rows["num_ranks"] = num_ranks
    num_calls = np.diff(starts, append=len(ordered))
    rows["num_calls"] = num_calls // num_ranks
    for field in ("num_tensors", "num_bytes"):
        total = np.add.reduceat(ordered[field].astype(np.int64), starts)
        rows[field] = total // num_ranks
    rows["first_begun_ns"] = np.minimum.reduceat(ordered["begun_ns"], starts)
    rows["ended_ns"] = np.maximum.reduceat(ordered["ended_ns"], starts)

    ranks = np.array([one.rank for one in recording.ranks])
    begin = np.cumsum(num_ranks) - num_ranks  # of each, in `arrivals`
    rows["first_ns"] = arrivals["arrived_ns"][begin]
    rows["last_ns"], rows["last_rank"], rows["late_ns"] = _latest(
        arrivals, "arrived_ns", begin, num_ranks, ranks
    )
    by_begin = arrivals[
        np.lexsort((arrivals["begun_ns"], arrivals["collective"]))
    ]
    rows["begun_ns"], rows["last_to_begin"], rows["began_late_ns"] = _latest(
        by_begin, "begun_ns", begin, num_ranks, ranks
    )
    rows["is_whole"] = num_ranks == _set_sizes(rows, recording)
    return rows


def _latest(
    ordered: Array, field: str, begin: Array, num_ranks: Array, ranks: Array
) -> tuple[Array, Array, Array]:
    """Returns when the last rank of each collective came, who, how late.

    Args:
        ordered: ARRIVAL, by collective and `field`.
        field: What is meant by coming.
        begin: Where each collective begins in `ordered`.
        num_ranks: How many ranks each has.
        ranks: The rank of each rank index.
    """
    last = begin + num_ranks - 1
    # The lower median: half of the ranks, on one host, may be late together.
    median = begin + np.maximum(num_ranks - 2, 0) // 2
    times = ordered[field]
    who = ranks[ordered["rank_index"][last]]
    return times[last], who, times[last] - times[median]


def _set_sizes(rows: Array, recording: Recording) -> Array:
    """The size of the process set of each collective.

    That of a set other than the global one is the most ranks seen in it.
    """
    sets, inverse = np.unique(rows["process_set"], return_inverse=True)
    sizes = np.zeros(len(sets), np.int64)
    np.maximum.at(sizes, inverse, rows["num_ranks"])
    sizes[sets == 0] = recording.size
    return sizes[inverse]
