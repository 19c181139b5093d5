"""What collectives move: how fast, for which tensors, how much together."""

from __future__ import annotations

import dataclasses

import numpy as np

from hvd_keras._observe.collectives import Collectives, shared
from hvd_keras._observe.recording import PHASES, Recording
from hvd_keras._observe.time_parts import TimeParts


@dataclasses.dataclass(frozen=True)
class SpeedOfSize:
    """How fast collectives of about one size were."""

    kind: int
    on_gpu: bool
    num_collectives: int
    num_bytes: float  # the median
    slow: float  # bytes a second: the 10th percentile
    median: float
    fast: float  # the 90th


@dataclasses.dataclass(frozen=True)
class TensorCost:
    """What a tensor, or a group of them, took: the mean of the ranks."""

    name: str
    kind: int
    dtype: int
    num_tensors: int
    num_bytes: float
    calls_a_step: float
    running_ns_a_step: float
    wait_ns_a_step: float


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How many tensors go together, for collectives that move any."""

    collectives_a_step: float
    calls_a_collective: float
    tensors_a_collective: float
    median_bytes: float
    bounds: list[tuple[int, int]]  # of tensors in a collective
    counts: list[int]  # of collectives within them


def speeds_of_sizes(collectives: Collectives) -> list[SpeedOfSize]:
    rows = collectives.rows
    rows = rows[
        (rows["num_bytes"] > 0)
        & (rows["num_ranks"] > 1)
        & (rows["ended_ns"] > rows["begun_ns"])
    ]
    speed = rows["num_bytes"] * 1e9 / (rows["ended_ns"] - rows["begun_ns"])
    size = np.log2(np.maximum(rows["num_bytes"], 1)).astype(int)
    key = np.stack([rows["kind"], rows["on_gpu"], size], 1)
    found = []
    for kind, on_gpu, one in np.unique(key, axis=0):
        here = np.all(key == (kind, on_gpu, one), axis=1)
        slow, median, fast = np.percentile(speed[here], [10, 50, 90])
        found.append(
            SpeedOfSize(
                int(kind),
                bool(on_gpu),
                int(here.sum()),
                float(np.median(rows["num_bytes"][here])),
                float(slow),
                float(median),
                float(fast),
            )
        )
    return found


def tensor_costs(
    collectives: Collectives, time: TimeParts, num_ranks: int
) -> list[TensorCost]:
    calls, num_names = collectives.calls, len(collectives.names)
    if not len(calls):
        return []
    # Requests that run together share the time by their bytes.
    key = calls["collective"] * num_ranks + calls["rank_index"]
    _, together = np.unique(key, return_inverse=True)
    weight = calls["num_bytes"].astype(float) + 1e-9
    weight /= np.bincount(together, weight)[together]
    running = weight * (calls["ended_ns"] - calls["begun_ns"])
    last = collectives.rows["last_ns"][calls["collective"]]
    wait = np.maximum(last - calls["enqueued_ns"], 0)
    num_steps = max(1, sum(len(one) for one in time.windows))

    ids = calls["name_id"]
    count = np.bincount(ids, minlength=num_names)
    sum_running = np.bincount(ids, running, num_names)
    sum_wait = np.bincount(ids, wait, num_names)
    sum_bytes = np.bincount(ids, calls["num_bytes"], num_names)
    _, example = np.unique(ids, return_index=True)
    found = []
    for call in calls[example]:
        name = int(call["name_id"])
        found.append(
            TensorCost(
                collectives.names[name],
                int(call["kind"]),
                int(call["dtype"]),
                int(call["num_tensors"]),
                float(sum_bytes[name] / count[name]),
                float(count[name] / num_steps),
                float(sum_running[name] / num_steps),
                float(sum_wait[name] / num_steps),
            )
        )
    return sorted(found, key=lambda one: -one.running_ns_a_step)


def fusion_of(collectives: Collectives, num_steps: int) -> Fusion:
    rows = collectives.rows[collectives.rows["num_bytes"] > 0]
    num_tensors = np.maximum(rows["num_tensors"], 1)
    some = max(len(rows), 1)
    bounds, counts, low = [], [], 1
    while len(rows) and low <= num_tensors.max():
        high = 1 << (low - 1).bit_length()
        bounds.append((low, high))
        within = (num_tensors >= low) & (num_tensors <= high)
        counts.append(int(within.sum()))
        low = high + 1
    return Fusion(
        collectives_a_step=len(rows) / max(num_steps, 1),
        calls_a_collective=float(rows["num_calls"].sum() / some),
        tensors_a_collective=float(num_tensors.sum() / some),
        median_bytes=float(np.median(rows["num_bytes"])) if len(rows) else 0.0,
        bounds=bounds,
        counts=counts,
    )


def wire_shares(
    recording: Recording, collectives: Collectives
) -> dict[str, float]:
    sums: dict[str, list[int]] = {}
    for index, one in enumerate(recording.ranks):
        waits = one.phases[one.phases["kind"] == PHASES.index("wire")]
        own = collectives.calls[collectives.of_rank(index)]
        _, first = np.unique(own["collective"], return_index=True)
        own = own[first]
        own = own[
            np.isin(own["collective_id"], waits["collective_id"])
            & np.isin(own["process_set"], waits["process_set"])
        ]
        known = sums.setdefault(one.host, [0, 0])
        known[0] += int((waits["end_ns"] - waits["begin_ns"]).sum())
        known[1] += int((own["ended_ns"] - own["begun_ns"]).sum())
    return {
        host: min(1.0, waited / running)
        for host, (waited, running) in sums.items()
        if running > 0
    }


def seconds_of_hosts(
    recording: Recording, collectives: Collectives
) -> dict[str, float]:
    """Returns how long the collectives between hosts ran, by host."""
    hosts = sorted({one.host for one in recording.ranks})
    host_of = np.array([hosts.index(one.host) for one in recording.ranks])
    calls = collectives.calls
    host = host_of[calls["rank_index"]]
    ran = np.zeros((len(collectives.rows), len(hosts)))
    ns = calls["ended_ns"] - calls["begun_ns"]
    np.maximum.at(ran, (calls["collective"], host), ns)
    # Those of a process set may be on some hosts alone.
    ran = ran[(ran > 0).all(1)]
    return dict(zip(hosts, (ran.sum(0) / 1e9).tolist(), strict=True))


def mean_speed(collectives: Collectives) -> float:
    rows = collectives.rows[shared(collectives)]
    rows = rows[rows["num_bytes"] > 0]
    running = int((rows["ended_ns"] - rows["begun_ns"]).sum())
    return rows["num_bytes"].sum() * 1e9 / running if running else float("nan")
