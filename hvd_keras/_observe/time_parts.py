"""Where the time of the steps goes, on each rank. docs/report.md defines it."""

from __future__ import annotations

import dataclasses

import numpy as np

from hvd_keras._observe.collectives import Collectives
from hvd_keras._observe.intervals import Array, Intervals, within_both
from hvd_keras._observe.recording import STEP, RankRecording, Recording

PARTS = ("compute", "overlapped", "transfer", "wait", "input")
# A slope needs so many points to be believed.
_MIN_POINTS = 8
# One of so many is no loss.
_MANY_STEPS = 10


@dataclasses.dataclass(frozen=True)
class TimeParts:
    """The windows of each rank, and the parts of each in ns.

    A window is a step, with the time up to the next one of the same epoch. With
    `steps_per_execution` it has so many steps.
    """

    has_steps: bool  # else one window a rank: all of its calls
    windows: list[Array]  # a rank: STEP; `end_ns` is that of the window
    parts: list[Array]  # a rank: [windows, PARTS]
    goes_on: list[Array]  # a rank: whether another step follows each window
    before_calls: list[Array]  # a rank: ns from begin to the first call, or -1
    step_of_call: Array  # for each call, a place in the windows of its rank

    def step_keys(self) -> list[Array]:
        """A rank: a number for each window, the same on all ranks.

        Steps count from 1 in each `fit`; so a lower number begins a new one.
        """
        keys = []
        for window in self.windows:
            steps = window["step"]
            fit = np.zeros(len(steps), np.int64)
            fit[1:] = np.cumsum(steps[1:] <= steps[:-1])
            keys.append(fit << 48 | steps)
        return keys

    def mean_parts(self) -> Array:
        """Returns the mean ns a step: [ranks, PARTS]; 0 without steps.

        The input of the last step of an epoch is not known: that step is left
        out if there are others. So is the first step, which is compiled, if
        there are many others.
        """
        means = []
        for parts, goes_on in zip(self.parts, self.goes_on, strict=True):
            known = parts[goes_on] if goes_on.any() else parts
            known = known[1:] if len(known) >= _MANY_STEPS else known
            means.append(known.mean(0) if len(known) else np.zeros(len(PARTS)))
        return np.array(means).reshape(-1, len(PARTS))


def split_time(recording: Recording, collectives: Collectives) -> TimeParts:
    """Returns where the time of each rank's steps went."""
    calls = collectives.calls
    has_steps = any(len(one.steps) for one in recording.ranks)
    windows, step_ends, goes_on = [], [], []
    step_of_call = np.full(len(calls), -1, np.int64)
    for index, one in enumerate(recording.ranks):
        own = collectives.of_rank(index)
        table = one.steps if has_steps else _whole(one, calls[own])
        window, ends, follows = _windows(table)
        windows.append(window)
        step_ends.append(ends)
        goes_on.append(follows)
        step_of_call[own] = _place(calls[own]["enqueued_ns"], window)
    blocks = blocking(calls, step_of_call)
    parts = []
    for index in range(len(recording.ranks)):
        own = collectives.of_rank(index)
        parts.append(
            _parts(
                calls[own],
                collectives.rows[calls[own]["collective"]],
                blocks[own],
                step_of_call[own],
                windows[index],
                step_ends[index],
            )
        )
    before = [
        _before_calls(
            calls[collectives.of_rank(index)]["enqueued_ns"],
            step_of_call[collectives.of_rank(index)],
            window["begin_ns"],
        )
        for index, window in enumerate(windows)
    ]
    return TimeParts(has_steps, windows, parts, goes_on, before, step_of_call)


def _before_calls(submitted: Array, step: Array, begins: Array) -> Array:
    before = np.full(len(begins), -1, np.int64)
    some, first = np.unique(step, return_index=True)  # calls are in order
    some, first = some[some >= 0], first[some >= 0]
    before[some] = submitted[first] - begins[some]
    return before


def _whole(one: RankRecording, calls: Array) -> Array:
    if not len(calls):
        return np.zeros(0, STEP)
    begin, end = calls["enqueued_ns"].min(), calls["ended_ns"].max()
    return np.array([(0, 0, begin, end)], STEP)


def _windows(steps: Array) -> tuple[Array, Array, Array]:
    """Returns the windows, where the step of each ends, and if one follows."""
    steps = steps[steps["end_ns"] > steps["begin_ns"]]
    steps = steps[np.argsort(steps["begin_ns"], kind="stable")]
    follows = np.zeros(len(steps), bool)
    more = np.diff(steps["step"])
    # That of one call of the train function: `steps_per_execution`.
    usual = more[more > 0].min(initial=np.iinfo(more.dtype).max)
    follows[:-1] = (steps["epoch"][1:] == steps["epoch"][:-1]) & (more == usual)
    windows = steps.copy()
    windows["end_ns"][:-1][follows[:-1]] = steps["begin_ns"][1:][follows[:-1]]
    ends = np.minimum(steps["end_ns"], windows["end_ns"])
    return windows, ends, follows


def _place(times: Array, window: Array) -> Array:
    """The window that each time is in, or -1."""
    if not len(window):
        return np.full(len(times), -1)
    place = np.searchsorted(window["begin_ns"], times, side="right") - 1
    is_in = (place >= 0) & (times < window["end_ns"][place])
    return np.where(is_in, place, -1)


def blocking(calls: Array, step_of_call: Array) -> Array:
    """Returns for each call whether its rank waits for its end.

    A call that was in flight while its rank submitted another does not block,
    nor do the calls of the same name. Of the others the recording tells: where
    a call that took 1 ms more made what follows come about 1 ms later, it
    blocks. Too few calls to tell count as blocking.

    Args:
        calls: The calls of all ranks, by rank and time.
        step_of_call: The step of each, or -1.
    """
    num_names = int(calls["name_id"].max(initial=0)) + 1
    same_step = (calls["rank_index"][1:] == calls["rank_index"][:-1]) & (
        step_of_call[1:] == step_of_call[:-1]
    )
    here = np.flatnonzero(same_step)
    if not len(here):
        return np.ones(len(calls), bool)
    name = calls["name_id"][here]
    lasted = (calls["ended_ns"] - calls["enqueued_ns"])[here].astype(float)
    gap = (calls["enqueued_ns"][here + 1] - calls["enqueued_ns"][here]).astype(
        float
    )
    overlaps = np.zeros(num_names, bool)
    overlaps[name[gap < lasted]] = True

    order = np.lexsort((calls["rank_index"][here], name))  # stable: by time
    follows = np.ones(len(order) - 1, bool)
    for column in (name[order], calls["rank_index"][here][order]):
        follows &= column[1:] == column[:-1]
    name = name[order][1:][follows]
    longer = np.diff(lasted[order])[follows]
    later = np.diff(gap[order])[follows]
    bounds = np.searchsorted(name, np.arange(num_names + 1))
    for one in np.unique(name):
        own = slice(bounds[one], bounds[one + 1])
        overlaps[one] |= _runs_on(longer[own], later[own])
    return ~overlaps[calls["name_id"]]


def _runs_on(longer: Array, later: Array) -> bool:
    """Whether what follows a call does not wait for it.

    Args:
        longer: How much longer each call took than the last of its name.
        later: How much later what follows came.
    """
    # The larger differences tell more; a median bears a step that is compiled.
    some = (np.abs(longer) >= np.median(np.abs(longer))) & (longer != 0)
    if len(longer) < _MIN_POINTS or not some.any():
        return False
    slope = float(np.median(later[some] / longer[some]))
    # A machine that is slow as a whole makes it far larger than 1.
    return not 0.5 <= slope <= 1.5


def _parts(
    calls: Array,
    rows: Array,
    blocks: Array,
    step_of_call: Array,
    window: Array,
    step_ends: Array,
) -> Array:
    """The parts of a rank's windows; `rows` has the collective of each call."""
    begins, ends = window["begin_ns"], window["end_ns"]
    submitted, ended = calls["enqueued_ns"], calls["ended_ns"]
    in_flight = Intervals(submitted, ended)

    # The tail: from the last call of a step (or after it) on, nothing new came.
    placed = step_of_call >= 0
    exposed_from, exposed_to = submitted.copy(), ended.copy()
    place = step_of_call[placed]
    section = 2 * place + (submitted[placed] >= step_ends[place])
    last = np.zeros(2 * len(window), np.int64)
    np.maximum.at(last, section, submitted[placed])
    exposed_from[placed] = np.where(
        blocks[placed], submitted[placed], last[section]
    )
    exposed_to[placed] = np.minimum(ended[placed], ends[place])
    exposed = Intervals(exposed_from, exposed_to)
    # From the first rank's begin to the last one's, the first waits.
    last_came = np.maximum(submitted, rows["last_ns"])
    moving = Intervals(
        np.concatenate([last_came, np.maximum(last_came, rows["begun_ns"])]),
        np.concatenate([np.minimum(rows["first_begun_ns"], ended), ended]),
    )

    in_step = in_flight.within(begins, step_ends)
    in_gap = in_flight.within(step_ends, ends)
    exposed_ns = exposed.within(begins, ends)
    transfer = within_both(exposed, moving, begins, ends)
    return np.stack(
        [
            step_ends - begins - in_step,
            in_step + in_gap - exposed_ns,
            transfer,
            exposed_ns - transfer,
            ends - step_ends - in_gap,
        ],
        axis=1,
    )
