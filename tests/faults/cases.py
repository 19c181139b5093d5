"""The fault set: cases of eight kinds, each with its truth.

The same seed gives the same cases, whatever the machine.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.programs import MARK, Program, Writer
from hvd_keras._observe.verdict import Cause

NUM_OF_KIND = 26  # 8 kinds make 208 cases
SEED = 17


@dataclasses.dataclass(frozen=True)
class Case:
    """A case, before it has a folder."""

    number: int
    cause: Cause
    num_ranks: int
    rank: int  # the truth: who is at fault
    seed: int
    # The job goes on, so somebody must ask.
    is_survey: bool = False
    is_tensorflow: bool = False
    stops_from_outside: bool = False

    @property
    def name(self) -> str:
        """A name that says what it is."""
        kind = self.cause.value.replace(" ", "_")
        return f"{kind}_{self.number:02d}"


def all_cases(seed: int = SEED) -> list[Case]:
    """All cases, kind by kind."""
    return [
        _case(cause, number, seed)
        for cause in Cause
        for number in range(NUM_OF_KIND)
    ]


def sample(seed: int = SEED) -> list[Case]:
    """One case of each kind."""
    return [_case(cause, number=1, seed=seed) for cause in Cause]


def _case(cause: Cause, number: int, seed: int) -> Case:
    rng = random.Random(f"{seed} {cause.value} {number}")
    num_ranks = rng.randint(2, 4)
    rank = rng.randrange(num_ranks)
    is_survey = cause == Cause.SLOW_INPUT and number % 3 > 0
    if cause == Cause.SLOW_LINK:
        num_ranks, rank, is_survey = 4, rng.choice((0, 2)), True
    return Case(
        number,
        cause,
        num_ranks,
        rank,
        seed=rng.randrange(1 << 30),
        is_survey=is_survey,
        # Starting TensorFlow takes long.
        is_tensorflow=number == 5
        and cause not in (Cause.SLOW_LINK, Cause.STOPPED),
        stops_from_outside=cause == Cause.STOPPED and number % 2 == 0,
    )


def write(case: Case, folder: Path) -> tuple[str, int] | None:
    """Writes the program of a case.

    Returns:
        The truth about the line: file and number; None if there is none.
    """
    rng = random.Random(case.seed)
    writer = Writer(rng, folder, victim=case.rank, step=rng.randint(12, 30))
    writer.uses_tensorflow = case.is_tensorflow
    program = _KINDS[case.cause](writer, rng, case)
    program.write(folder)
    return program.marked()


# ---- The kinds ----


def _skipped(writer: Writer, rng: random.Random, case: Case) -> Program:
    calls = writer.usual()
    index = rng.randrange(len(calls))
    if case.number % 5 == 4:  # it ends early
        leave = ["hvd.shutdown()", "sys.exit(0)"]
        return writer.program(writer.step_with(leave))
    odd = calls[:index] + calls[index + 1 :]
    if index < len(odd):
        odd[index] += MARK
        return writer.program(writer.step_with(odd))
    # It waits in the first call of the next step.
    usual = [calls[0] + MARK, *calls[1:]]
    return writer.program(writer.step_with(odd, usual))


def _diverged(writer: Writer, rng: random.Random, case: Case) -> Program:
    calls = writer.usual()
    index = rng.randrange(len(calls))
    name = rng.choice(("eval/loss", "eval/accuracy", "ema/decay", "clip/norm"))
    other = writer.call(0, name=name) + MARK
    after = calls[index:] if case.number % 2 else calls[index + 1 :]
    return writer.program(writer.step_with([*calls[:index], other, *after]))


def _order(writer: Writer, rng: random.Random, case: Case) -> Program:
    count = len(writer.names)
    # Its first call that differs is none that skipping one call would lead to.
    first = rng.randrange(count - 2)
    rest = list(range(first, count))
    rng.shuffle(rest)
    while rest[0] <= first + 1:
        rng.shuffle(rest)
    odd = writer.usual([*range(first), *rest])
    odd[first] += MARK
    return writer.program(writer.step_with(odd))


def _mismatch(writer: Writer, rng: random.Random, case: Case) -> Program:
    calls = writer.usual()
    index = rng.randrange(len(calls))
    size = writer.sizes[index]
    if case.number % 3 == 0:
        dtype, writer.dtype = writer.dtype, "uint8"
        odd = writer.call(index)
        writer.dtype = dtype
    else:
        shapes = (
            f"({size + rng.randint(1, 9)},)",
            f"({size}, 1)",
            f"(1, {size})",
        )
        odd = writer.call(index, shape=rng.choice(shapes))
    body = [*calls[:index], odd + MARK, *calls[index + 1 :]]
    return writer.program(writer.step_with(body))


def _slow_input(writer: Writer, rng: random.Random, case: Case) -> Program:
    if case.is_survey:
        seconds = rng.choice((0.05, 0.1, 0.2))
        # From the first step on; the ranks work in this time as well.
        fault = f"rank == VICTIM and time.sleep({seconds}){MARK}"
    else:
        fault = f"is_due(rank, step) and time.sleep(600){MARK}"
        writer.step = rng.randint(9, 30)
    return writer.program(writer.usual(), fault)


def _slow_link(writer: Writer, rng: random.Random, case: Case) -> Program:
    writer.sizes = [rng.randint(20_000, 80_000) for _ in writer.names]
    return writer.program(writer.usual())


def _stopped(writer: Writer, rng: random.Random, case: Case) -> Program:
    if case.stops_from_outside:
        return writer.program(writer.usual())
    calls = writer.usual()
    calls.insert(
        rng.randrange(len(calls)),
        "is_due(step) and os.kill(os.getpid(), signal.SIGSTOP)",
    )
    return writer.program(calls)


def _dead(writer: Writer, rng: random.Random, case: Case) -> Program:
    ways = (
        "os.kill(os.getpid(), signal.SIGKILL)",
        f'raise ValueError("bad batch"){MARK}',
        f"os.abort(){MARK}",
        "os._exit(3)",
        f"[][step]{MARK}",
        f"ctypes.string_at(0){MARK}",
        "os.kill(os.getpid(), signal.SIGTERM)",
    )
    calls = writer.usual()
    index = rng.randrange(len(calls))
    fault = ["if is_due(step):", f"    {ways[case.number % len(ways)]}"]
    return writer.program([*calls[:index], *fault, *calls[index:]])


_KINDS: dict[Cause, Callable[[Writer, random.Random, Case], Program]] = {
    Cause.SKIPPED: _skipped,
    Cause.DIVERGED: _diverged,
    Cause.ORDER: _order,
    Cause.MISMATCH: _mismatch,
    Cause.SLOW_INPUT: _slow_input,
    Cause.SLOW_LINK: _slow_link,
    Cause.STOPPED: _stopped,
    Cause.DEAD: _dead,
}


def truths() -> Iterator[dict[str, object]]:
    """What is right for each case, without running it."""
    for case in all_cases():
        row = dataclasses.asdict(case)
        yield {"case": case.name, **row, "cause": case.cause.value}
