"""Rules of advice on ranks that are late, and why they are."""

from __future__ import annotations

import numpy as np

from hvd_keras._observe.advice_text import (
    Advice,
    ms,
    name_ranks,
    percent,
)
from hvd_keras._observe.analysis import Analysis
from hvd_keras._observe.intervals import Array
from hvd_keras._observe.time_parts import PARTS

_UNKNOWN_CAUSE = "the record does not tell why."
# A cost below this share of a step is not worth a word.
WORTH = 0.05
# A rank that is last in so many steps is so for a reason.
_MOSTLY = 0.5
_MOSTLY_OF_TWO = 0.75  # they toss a coin
_SIGMAS = 3
# What a part must explain of a rank's lateness to be its cause.
_EXPLAINS = 0.5


def late_rank(analysis: Analysis) -> Advice | None:
    """One rank is last in most steps, and the others wait for it."""
    last = analysis.last
    count = len(last.times_last)
    if count < 2 or not last.num_units or _late_host(analysis) is not None:
        return None
    worst = int(np.argmax(last.times_last))
    times = int(last.times_last[worst])
    if _may_be_chance(times, last.num_units, 1 / count):
        return None
    late = float(last.late_ns[worst]) / times
    if _costs_little(analysis, late * times / last.num_units):
        return None
    cause, cure = _cause(analysis, np.arange(count) == worst, late, "its")
    rank = analysis.recording.ranks[worst].rank
    return Advice(
        "late_rank",
        "problem",
        f"{name_ranks(analysis, [rank])} was last in "
        f"{percent(times / last.num_units)} of {last.unit}, by "
        f"{ms(late)}: {cause or _UNKNOWN_CAUSE}",
        cure,
        has_cause=bool(cause),
    )


def late_host(analysis: Analysis) -> Advice | None:
    """The ranks of one host are late together."""
    found = _late_host(analysis)
    if found is None:
        return None
    host, share, late = found
    on_host = np.array([one.host == host for one in analysis.recording.ranks])
    cause, cure = _cause(analysis, on_host, late, "its ranks'")
    return Advice(
        "late_host",
        "problem",
        f"A rank of host {host} was last in {percent(share)} of "
        f"{analysis.last.unit}, by {ms(late)}: {cause or _UNKNOWN_CAUSE}",
        cure,
        has_cause=bool(cause),
    )


def _late_host(analysis: Analysis) -> tuple[str, float, float] | None:
    """Returns host, share of units, ns late, if several of its ranks are."""
    last, ranks = analysis.last, analysis.recording.ranks
    hosts = [one.host for one in ranks]
    if len(set(hosts)) < 2 or not last.num_units:
        return None
    worst = int(np.argmax(last.late_ns))
    on_host = np.array(hosts) == hosts[worst]
    mates = on_host & (np.arange(len(hosts)) != worst)
    # Its mates are late with it, and the ranks of other hosts are not.
    half = 0.5 * last.mean_ns[worst]
    if (
        not mates.any()
        or np.median(last.mean_ns[mates]) < half
        or np.median(last.mean_ns[~on_host]) >= half
    ):
        return None
    times = int(last.times_last[on_host].sum())
    share = times / last.num_units
    if _may_be_chance(times, last.num_units, float(on_host.mean())):
        return None
    late = float(last.late_ns[on_host].sum()) / times
    if _costs_little(analysis, late * share):
        return None
    return hosts[worst], share, late


def _may_be_chance(times: int, num_units: int, chance: float) -> bool:
    """Whether what happens by `chance` may happen so many times."""
    mostly = _MOSTLY if chance < 0.5 else _MOSTLY_OF_TWO
    spread = float(np.sqrt(num_units * chance * (1 - chance)))
    return times < max(
        mostly * num_units, chance * num_units + _SIGMAS * spread
    )


def _costs_little(analysis: Analysis, ns_a_unit: float) -> bool:
    if analysis.time.has_steps:
        return ns_a_unit < WORTH * analysis.step_ns
    return analysis.share("wait") < WORTH


def _cause(
    analysis: Analysis, late: Array, late_ns: float, whose: str
) -> tuple[str, str]:
    """What ranks that are late do longer than the others, and what helps.

    The first is "" if the record does not tell.
    """
    spent = _usual_times(analysis)
    own = {name: float(np.median(ns[late])) for name, ns in spent.items()}
    others = {name: float(np.median(ns[~late])) for name, ns in spent.items()}
    excess = {name: own[name] - others[name] for name in spent}
    enough = _EXPLAINS * late_ns
    if not analysis.time.has_steps or sum(excess.values()) < enough:
        return (
            "",
            "Look at its track in the timeline (`hvd-trace merge`).",
        )
    if excess["input"] >= enough:
        return _slow_input_text(
            *(whose, own["input"], others["input"], "between steps")
        )
    # A slow processor takes longer for all of a step, slow input does not.
    slowdown = own["before"] / max(others["before"], 1) - 1
    rest = own["after"] / max(others["after"], 1) - 1
    if (
        may_read_in_steps(analysis)
        and excess["before"] >= enough
        and others["after"] >= WORTH * others["before"]
        and rest < 0.5 * slowdown
    ):
        return _slow_input_text(
            *(whose, own["before"], others["before"]),
            "up to the first call of a step",
        )
    return (
        f"{whose} computing is slow "
        f"({ms(own['before'] + own['after'])} a step, "
        f"{ms(others['before'] + others['after'])} on the others).",
        "Look for another program on its cores, fewer or slower cores, or "
        "batches that are larger than those of other ranks.",
    )


def _usual_times(analysis: Analysis) -> dict[str, Array]:
    """What each rank spends: the median ns of its steps.

    "input": between steps; "before", "after": in a step, up to its first call
    and from there on, without what it waits for.
    """
    rows = []
    time = analysis.time
    column = PARTS.index
    for parts, goes_on, before in zip(
        time.parts, time.goes_on, time.before_calls, strict=True
    ):
        known = before >= 0
        busy = parts[:, column("compute")] + parts[:, column("overlapped")]
        rows.append(
            [
                _median(parts[goes_on, column("input")]),
                _median(before[known]),
                _median(np.maximum(busy - before, 0)[known]),
            ]
        )
    table = np.array(rows)
    return {"input": table[:, 0], "before": table[:, 1], "after": table[:, 2]}


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else 0.0


def may_read_in_steps(analysis: Analysis) -> bool:
    """Whether Keras reads a batch within a step: on TensorFlow and JAX."""
    backends = {o.settings.get("backend") for o in analysis.recording.ranks}
    return backends != {"torch"}


def _slow_input_text(
    whose: str, own: float, others: float, where: str
) -> tuple[str, str]:
    return (
        f"{whose} input is slow ({ms(own)} {where}, {ms(others)} on the "
        "others).",
        "Prefetch more, read from a faster disk, or give each rank an equal "
        "share of the rows (`hvd.shard`).",
    )
