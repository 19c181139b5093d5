"""The model of a step over hosts, where its answer is known by hand."""

from __future__ import annotations

import importlib
import pathlib
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).parents[2]
COMPUTE = 0.9


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("_step_model")


@pytest.fixture
def networks(model: ModuleType) -> ModuleType:
    return importlib.import_module("_networks")


def test_buckets_are_ready_when_their_last_gradient_is(
    model: ModuleType, networks: ModuleType
) -> None:
    gradients = [
        networks.Gradient(num_bytes, operations)
        for num_bytes, operations in ((4, 3), (8, 1), (8, 2))
    ]
    third = 1 / 3
    # The backward pass begins behind a third of the step, with the last one.
    ready = [third + 2 * third * done for done in (third, 0.5, 1)]
    alone = model.buckets_of(gradients, 1)
    assert [bucket.num_bytes for bucket in alone] == [8, 8, 4]
    assert [bucket.ready for bucket in alone] == pytest.approx(ready)
    two = model.buckets_of(gradients, 16)
    assert [bucket.num_bytes for bucket in two] == [16, 4]
    assert [bucket.ready for bucket in two] == pytest.approx(ready[1:])


@pytest.mark.parametrize(
    ("latency", "slope", "fuse_within", "expected"),
    [
        (0.0, 0.0, 0.0, COMPUTE),
        (0.0, 0.01, 0.0, 0.94),  # only the last one's way is seen
        (0.5, 0.0, 0.0, 1.95),  # 0.45, then three, one after the other
        (0.5, 0.0, 0.001, 1.45),  # the two that have waited go as one
    ],
)
def test_a_step_ends_with_its_last_reduction(
    model: ModuleType,
    latency: float,
    slope: float,
    fuse_within: float,
    expected: float,
) -> None:
    buckets = [model.Bucket(4, ready) for ready in (0.5, 0.8, 1.0)]
    costs = model.Costs([1, 2], [latency + slope, latency + 2 * slope])
    seconds = model.step_seconds(
        buckets, COMPUTE, costs, fuse_within=fuse_within
    )
    assert seconds == pytest.approx(expected)


def test_a_ring_of_many_is_slower_than_a_tree(
    model: ModuleType, networks: ModuleType
) -> None:
    clusters = importlib.import_module("clusters")
    gradients = networks.gradients_of("bert")
    assert sum(g.num_bytes for g in gradients) == pytest.approx(436e6, rel=1e-3)
    found = [
        clusters.efficiency(clusters.CLUSTERS[0], gradients, 0.4, 512, way)
        for way in clusters.WAYS
    ]
    assert sorted(found, reverse=True) == found
    assert clusters.efficiency(
        clusters.CLUSTERS[0], gradients, 0.4, 4, clusters.WAYS[0]
    ) == pytest.approx(1)
