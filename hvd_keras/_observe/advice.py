"""Advice in words: what a job loses time by, and what helps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from hvd_keras._observe.advice_text import (
    Advice,
    counted,
    in_bytes,
    listed,
    ms,
    name_ranks,
    percent,
    plain_ranks,
    rate,
    seconds,
)
from hvd_keras._observe.analysis import Analysis
from hvd_keras._observe.late_ranks import WORTH, late_host, late_rank
from hvd_keras._observe.predictions import network_of

_MUCH = 0.2
# Collectives that wait for other hosts so much are bound by the network.
_WIRE_WAITS = 0.4
_SMALL_BYTES = 64 << 10


def advise(analysis: Analysis) -> list[Advice]:
    """Returns all advice, problems first."""
    found = [
        dataclasses.replace(one, text=one.text[0].upper() + one.text[1:])
        for rule in RULES
        if (one := rule(analysis)) is not None and not _is_effect(one, analysis)
    ]
    if analysis.time.has_steps and not any(
        one.severity == "problem" for one in found
    ):
        good = _nothing_lost(analysis)
        found += [good] if good else []
    order = ("problem", "hint", "good")
    return sorted(found, key=lambda one: order.index(one.severity))


def _is_effect(advice: Advice, analysis: Analysis) -> bool:
    """Whether a slow link is why: who waits for its data is late next time."""
    return (
        analysis.slow_sender is not None
        and not advice.has_cause
        and slow_network(analysis) is not None
    )


def unanswered_call(analysis: Analysis) -> Advice | None:
    """A rank never made a call that others wait in."""
    if not analysis.unanswered:
        return None
    one = analysis.unanswered[0]
    more = len(analysis.unanswered) - 1
    others = f" The same holds for {counted(more, 'more call')}." * bool(more)
    return Advice(
        "unanswered_call",
        "problem",
        f"{name_ranks(analysis, one.missing)} never called {one.name!r}; "
        f"{name_ranks(analysis, one.waiting, hosts=False)} waited "
        f"{seconds(one.waited_ns)} for it.{others}",
        "Every rank must make the same calls: look for code that runs on some "
        "ranks alone, such as `if hvd.rank() == 0`.",
    )


def pause(analysis: Analysis) -> Advice | None:
    """A rank stood still for once."""
    if not analysis.pauses:
        return None
    one = analysis.pauses[0]
    count = len(analysis.pauses)
    who = name_ranks(analysis, [one.rank])
    if one.rank < 0:
        who = "a rank (which one is not in the record)"
    known = sorted({one.rank for one in analysis.pauses} - {-1})
    whose = f", of {plain_ranks(known)}" if known else ""
    return Advice(
        "pause",
        "problem",
        f"{who} stood still for {seconds(one.lasted_ns)}, "
        f"{seconds(one.at_ns)} after the start."
        + f" There were {count} such pauses{whose}."
        * (count > 1),
        "Something stopped the process: SIGSTOP, a machine that swaps, "
        "another program, a checkpoint, or a read that hung.",
    )


def slow_input(analysis: Analysis) -> Advice | None:
    """All ranks wait for data."""
    total = analysis.mean_parts_ns.sum(1)
    if not analysis.time.has_steps or not total.all():
        return None
    # The lower median: of two ranks, both must wait for data.
    shares = analysis.part("input") / total
    share = float(np.quantile(shares, 0.5, method="lower"))
    if share < _MUCH:
        return None
    usual = np.quantile(analysis.part("input"), 0.5, method="lower")
    return Advice(
        "slow_input",
        "problem",
        f"Reading the next batch takes {percent(share)} of a step on most "
        f"ranks ({ms(float(usual))}).",
        "Prefetch (`dataset.prefetch`), decode in parallel, or cache; have "
        "each rank read its own rows ('Who reads what' in docs/data.md). "
        "Callbacks that run after each batch count here too.",
    )


def slow_network(analysis: Analysis) -> Advice | None:
    """Moving data between hosts takes much of a step."""
    shares = analysis.wire_share
    if len(shares) < 2 or analysis.share("transfer") < _MUCH:
        return None
    waits = float(np.mean(list(shares.values())))
    if waits < _WIRE_WAITS:
        return None
    hosts = sorted(shares)
    where = listed(hosts) if len(hosts) <= 4 else f"{len(hosts)} hosts"
    what = f"the network between {where} holds the job up"
    if analysis.slow_sender is not None:
        ranks = analysis.recording.ranks
        own = [one.rank for one in ranks if one.host == analysis.slow_sender]
        what = (
            f"host {analysis.slow_sender} ({plain_ranks(own)}) sends slowly, "
            "and the other hosts wait for it"
        )
    return Advice(
        "slow_network",
        "problem",
        f"{what}: collectives move {rate(analysis.speed)} and wait for other "
        f"hosts {percent(waits)} of their time. Exposed transfer is "
        f"{percent(analysis.share('transfer'))} of a step."
        f"{_in_numbers(analysis)}",
        "Compress gradients (`compression=hvd.Compression.int8` or `int4`), "
        "reduce less often (`local_updates=hvd.LocalUpdates(every=20)`, "
        "`backward_passes_per_step`; see docs/slow-networks.md), check "
        "`hvdrun --check -H ...` and which network HVD_INTERFACE names.",
    )


def _in_numbers(analysis: Analysis) -> str:
    """Returns what the cures would make of a step, or ""."""
    network = network_of(analysis)
    if network is None:
        return ""
    return (
        f" A step takes {ms(network.step_ns)} and would take about "
        f"{ms(network.packed('int8'))} with int8, {ms(network.packed('int4'))} "
        f"with int4, and {ms(network.local())} with local updates every 20 "
        "steps."
    )


def much_transfer(analysis: Analysis) -> Advice | None:
    """Moving data takes much of a step, and not because of a network."""
    share = analysis.share("transfer")
    if not share >= _MUCH or slow_network(analysis) is not None:
        return None
    return Advice(
        "much_transfer",
        "problem",
        f"{percent(share)} of a step is exposed transfer: ranks move data "
        "and compute nothing.",
        "Larger batches, `compression=hvd.Compression.fp16` or "
        "`backward_passes_per_step` move less a sample.",
    )


def small_collectives(analysis: Analysis) -> Advice | None:
    """Many small collectives, which fusion would join."""
    fusion = analysis.fusion
    if (
        fusion.collectives_a_step < 10
        or fusion.median_bytes >= _SMALL_BYTES
        or fusion.tensors_a_collective >= 2
        or not analysis.share("transfer") >= WORTH
    ):
        return None
    return Advice(
        "small_collectives",
        "problem",
        f"A step makes {fusion.collectives_a_step:.0f} collectives of "
        f"{in_bytes(fusion.median_bytes)} each, one tensor at a time.",
        "Submit them together: `hvd.grouped_allreduce`, or all gradients "
        "through `DistributedOptimizer` or `DistributedGradientTape`.",
    )


def uneven_ranks(analysis: Analysis) -> Advice | None:
    """Ranks wait much, and each is last at times."""
    if not analysis.share("wait") >= 2 * WORTH or not analysis.last.num_units:
        return None
    if late_rank(analysis) or late_host(analysis) or pause(analysis):
        return None
    most = float(analysis.last.times_last.max() / analysis.last.num_units)
    return Advice(
        "uneven_ranks",
        "hint",
        f"Ranks wait for each other {percent(analysis.share('wait'))} of the "
        f"time, and no rank is to blame: none was last in more than "
        f"{percent(most)} of {analysis.last.unit}.",
        "Batches of unequal cost, or more threads than cores, do that. "
        "`hvdrun` shares out the cores.",
    )


def missing_records(analysis: Analysis) -> Advice | None:
    """Something is not in the record."""
    dropped = sum(one.num_dropped for one in analysis.recording.ranks)
    seen = {one.rank for one in analysis.recording.ranks}
    absent = sorted(set(range(analysis.recording.size)) - seen)
    texts = []
    if absent:
        texts.append(f"{plain_ranks(absent)} left no record")
    if dropped:
        texts.append(
            f"{counted(dropped, 'event')} could not be written in time"
        )
    if not texts:
        return None
    return Advice(
        "missing_records",
        "hint",
        f"The record is not whole: {listed(texts)}.",
        "Figures count what is there. Record onto a local disk.",
    )


def unsure_clocks(analysis: Analysis) -> Advice | None:
    """The clocks of hosts are too far apart to tell who came last."""
    last = analysis.last
    if last.num_units == 0 or last.num_close <= last.num_units / 2:
        return None
    if analysis.clock_error_ns == 0:
        return None
    return Advice(
        "unsure_clocks",
        "hint",
        f"In {percent(last.num_close / last.num_units)} of {last.unit} the "
        f"ranks came within {ms(analysis.clock_error_ns)}, the error of the "
        "clocks between hosts: who was last is not known there.",
        "",
    )


def _nothing_lost(analysis: Analysis) -> Advice | None:
    if not analysis.efficiency >= 0.9:
        return None
    return Advice(
        "nothing_lost",
        "good",
        f"Ranks lose {percent(1 - analysis.efficiency)} of their time to each "
        "other. There is little to gain in communication.",
        "",
    )


RULES: tuple[Callable[[Analysis], Advice | None], ...] = (
    unanswered_call,
    pause,
    late_rank,
    late_host,
    slow_input,
    slow_network,
    much_transfer,
    small_collectives,
    uneven_ranks,
    missing_records,
    unsure_clocks,
)
