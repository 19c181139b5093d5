"""How long a step would take if less went over the network."""

from __future__ import annotations

import dataclasses

import numpy as np

from hvd_keras._observe.analysis import Analysis
from hvd_keras._observe.collectives import shared
from hvd_keras._observe.recording import DTYPES, KINDS

# Elements that share a scale, which is a float32, and the bytes of each.
_BLOCKS = {"int8": (128, 1.0), "int4": (64, 0.5)}
_ELEMENT_BYTES = {
    "float16": 2.0,
    "bfloat16": 2.0,
    "float32": 4.0,
    "float64": 8.0,
}
_EVERY = 20  # steps between two averages of local updates


@dataclasses.dataclass(frozen=True)
class Network:
    """What a step pays for the network, in the mean of ranks and steps.

    Attributes:
        step_ns: The step.
        wire_ns: Of it, what the network alone takes, hidden or not.
        exposed_ns: The time of collectives in which nothing is computed.
        hidden_ns: The time of collectives beside which ranks compute.
        element_bytes: The mean size of what is reduced.
    """

    step_ns: float
    wire_ns: float
    exposed_ns: float
    hidden_ns: float
    element_bytes: float

    def with_wire(self, share: float) -> float:
        """Returns the step in ns if the network took this share of its time."""
        running = self.exposed_ns + self.hidden_ns - (1 - share) * self.wire_ns
        exposed = max(0.0, running - self.hidden_ns)
        return self.step_ns - self.exposed_ns + exposed

    def packed(self, compression: str) -> float:
        """Returns the step in ns with `hvd.Compression`'s int8 or int4."""
        block, element = _BLOCKS[compression]
        packed = (element + 4 / block) / self.element_bytes
        return self.with_wire(min(1.0, packed))

    def local(self, every: int = _EVERY) -> float:
        """Returns the step in ns with `hvd.LocalUpdates(every=...)`.

        An average of weights waits for nothing and hides behind nothing.
        """
        running = self.exposed_ns + self.hidden_ns
        return self.step_ns - self.exposed_ns + running / every


def network_of(analysis: Analysis) -> Network | None:
    """Returns what the network costs; None if the recording does not tell."""
    if not analysis.time.has_steps or not analysis.wire_share:
        return None
    rows = analysis.collectives.rows[shared(analysis.collectives)]
    rows = rows[
        (rows["kind"] == KINDS.index("allreduce")) & (rows["num_bytes"] > 0)
    ]
    calls = analysis.collectives.calls
    of_floats = np.isin(
        calls["dtype"], [DTYPES.index(name) for name in _ELEMENT_BYTES]
    )
    calls = calls[of_floats & (calls["num_bytes"] > 0)]
    if not len(rows) or not len(calls):
        return None
    sizes = np.zeros(len(DTYPES))
    for name, size in _ELEMENT_BYTES.items():
        sizes[DTYPES.index(name)] = size
    num_bytes = calls["num_bytes"].sum()
    num_elements = (calls["num_bytes"] / sizes[calls["dtype"]]).sum()
    running = (rows["ended_ns"] - rows["begun_ns"]).sum() / analysis.num_steps
    exposed = float(analysis.part("transfer").mean())
    return Network(
        step_ns=float(analysis.mean_parts_ns.sum(1).mean()),
        wire_ns=running * float(np.mean(list(analysis.wire_share.values()))),
        exposed_ns=exposed,
        hidden_ns=max(0.0, running - exposed),
        element_bytes=float(num_bytes / num_elements),
    )
