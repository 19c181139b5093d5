"""How long a step would take if less went over the network."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from hvd_keras._observe.analysis import Analysis
from hvd_keras._observe.collectives import shared
from hvd_keras._observe.intervals import Array
from hvd_keras._observe.recording import DTYPES, KINDS, PHASES
from hvd_keras._observe.time_parts import PARTS

# Elements that share a scale, which is a float32, and the bytes of each.
_BLOCKS = {"int8": (128, 1.0), "int4": (64, 0.5)}
_ELEMENT_BYTES = {
    "float16": 2.0,
    "bfloat16": 2.0,
    "float32": 4.0,
    "float64": 8.0,
}
# Of 8 MiB between two hosts a wire works for 9.1 ms, where a rank takes 3.4 to
# bring and take them. Packed, that work takes 0.6 of the time, whatever the
# link (8 MiB, not shaped). Both are measured: benchmarks/RESULTS.md.
_WORK_OF_WIRE = 9.1 / 3.4
_PACKED_WORK = 0.6
_EVERY = 20  # steps between two averages of local updates


@dataclasses.dataclass(frozen=True)
class Network:
    """What a usual step pays for the network, in the mean of ranks.

    Attributes:
        step_ns: The step.
        wire_ns: Of it, what the network alone takes, hidden or not.
        work_ns: Of that, the processor's part, which few bytes shorten less.
        exposed_ns: The time of collectives in which nothing is computed.
        hidden_ns: The time of collectives beside which ranks compute.
        waiting_ns: What a rank waits for others that are slower in this step.
        element_bytes: The mean size of what is reduced.
    """

    step_ns: float
    wire_ns: float
    work_ns: float
    exposed_ns: float
    hidden_ns: float
    waiting_ns: float
    element_bytes: float

    def packed(self, compression: str) -> float:
        """Returns the step in ns with `hvd.Compression`'s int8 or int4.

        The link and the processor work at the same time for a part of it. So
        their times add up as the sides of a right angle do.
        """
        block, element = _BLOCKS[compression]
        share = min(1.0, (element + 4 / block) / self.element_bytes)
        link = math.sqrt(self.wire_ns**2 - self.work_ns**2)
        wire = math.hypot(share * link, _PACKED_WORK * self.work_ns)
        running = self.exposed_ns + self.hidden_ns - (self.wire_ns - wire)
        exposed = max(0.0, running - self.hidden_ns)
        return self.step_ns - self.exposed_ns + exposed

    def local(self, every: int = _EVERY) -> float:
        """Returns the step in ns with `hvd.LocalUpdates(every=...)`.

        An average of weights hides behind nothing. Between two of them nobody
        waits.
        """
        paused = self.exposed_ns + self.waiting_ns
        running = paused + self.hidden_ns
        return self.step_ns - paused + running / every


def network_of(analysis: Analysis) -> Network | None:
    """Returns what the network costs; None if the recording does not tell."""
    if not analysis.time.has_steps or not analysis.wire_share:
        return None
    rows = analysis.collectives.rows
    is_sum = (rows["kind"] == KINDS.index("allreduce")) & (
        rows["num_bytes"] > 0
    )
    is_shared = np.zeros(len(rows), bool)
    is_shared[shared(analysis.collectives)] = True
    is_sum &= is_shared
    calls = analysis.collectives.calls
    of_floats = np.isin(
        calls["dtype"], [DTYPES.index(name) for name in _ELEMENT_BYTES]
    )
    calls = calls[of_floats & (calls["num_bytes"] > 0)]
    if not is_sum.any() or not len(calls):
        return None
    sizes = np.zeros(len(DTYPES))
    for name, size in _ELEMENT_BYTES.items():
        sizes[DTYPES.index(name)] = size
    num_bytes = calls["num_bytes"].sum()
    num_elements = (calls["num_bytes"] / sizes[calls["dtype"]]).sum()
    usual = _usual_step(analysis, is_sum)
    if usual is None:
        return None
    parts, running = usual
    exposed = float(parts[PARTS.index("transfer")])
    wire = running * float(np.mean(list(analysis.wire_share.values())))
    return Network(
        step_ns=float(parts.sum()),
        wire_ns=wire,
        work_ns=wire * _work_share(analysis),
        exposed_ns=exposed,
        hidden_ns=max(0.0, running - exposed),
        waiting_ns=float(parts[PARTS.index("wait")]),
        element_bytes=float(num_bytes / num_elements),
    )


def _usual_step(
    analysis: Analysis, is_sum: Array
) -> tuple[Array, float] | None:
    """Returns the parts of a usual step, and how long its sums run, in ns.

    The middle half of the steps is usual. One that was compiled, was held up,
    or had to send something twice is not. None: there is no whole step.
    """
    time, collectives = analysis.time, analysis.collectives
    rows = collectives.rows
    lasted = np.where(is_sum, rows["ended_ns"] - rows["begun_ns"], 0)
    parts, running = [], []
    for index, of_rank in enumerate(time.parts):
        goes_on = time.goes_on[index]
        known = goes_on if goes_on.any() else np.ones(len(of_rank), bool)
        if not known.any():
            continue
        total = of_rank.sum(1)
        least, most = np.percentile(total[known], (25, 75))
        usual = known & (least <= total) & (total <= most)
        own = collectives.of_rank(index)
        step = time.step_of_call[own]
        here = collectives.calls[own]["collective"][
            (step >= 0) & usual[np.maximum(step, 0)]
        ]
        parts.append(of_rank[usual].mean(0))
        running.append(lasted[np.unique(here)].sum() / usual.sum())
    if not parts:
        return None
    return np.mean(parts, axis=0), float(np.mean(running))


def _work_share(analysis: Analysis) -> float:
    """Returns the share of the network's time that its processor works."""
    phases = np.concatenate([one.phases for one in analysis.recording.ranks])
    lasted = phases["end_ns"] - phases["begin_ns"]
    is_wire = phases["kind"] == PHASES.index("wire")
    moving, waiting = lasted[~is_wire].sum(), lasted[is_wire].sum()
    return min(1.0, _WORK_OF_WIRE * float(moving) / max(1.0, float(waiting)))
