"""`--verify` leaves out no difference that it cannot explain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_keras._verify.causes import Difference
from hvd_keras._verify.records import Event
from hvd_keras._verify.rounding import Rounding

W = [4.0, 1.0]
SMALL = [1e-3, 0.0]


def measured(
    kind: str, arrays: dict[str, list[float]], *gaps: float
) -> Rounding:
    """What is known after one event and runs that differ by `gaps` there."""
    runs = [
        [_event(kind, {name: np.array(a) + gap for name, a in arrays.items()})]
        for gap in gaps
    ]
    rounding = Rounding(runs, 1e-5)
    rounding.go_on_to(
        _event(kind, {name: np.array(a) for name, a in arrays.items()})
    )
    return rounding


def _event(kind: str, arrays: dict[str, Any]) -> Event:
    return Event(kind, "model", 0, 1, {}, arrays)


def _difference(gap: float, name: str = "w") -> Difference:
    return Difference("weights", 1, "w", "", "", name=name, gap=gap)


# Three times what the nudges did, in parts of the largest element. Small arrays
# count as 0.01 large, and small gradients as 0.01 of the largest one.
@pytest.mark.parametrize(
    ("kind", "arrays", "name", "most"),
    [
        ("weights", {"w": W, "b": SMALL}, "w", 3e-3 / 4),
        ("weights", {"w": W, "b": SMALL}, "b", 0.1),  # not more than that
        ("gradients", {"w": W, "b": SMALL}, "w", 3e-3 / 4),
        ("gradients", {"w": W, "b": SMALL}, "b", 3e-3 / 4e-2),
        ("gradients", {"b": SMALL}, "b", 0.1),
        ("gradients", {"b": [0.0, 0.0], "empty": []}, "b", 3e-3),
        ("gradients", {"empty": []}, "empty", 0.0),
        ("weights", {"w": W, "empty": []}, "empty", 0.0),
        ("loss", {"": [2.0]}, "", 3e-3 / 2),
        ("rows", {"": W}, "", 0.0),
        ("weights", {"w": W}, "another", 0.0),
    ],
)
def test_rounding_explains_what_nudges_do(
    kind: str, arrays: dict[str, list[float]], name: str, most: float
) -> None:
    rounding = measured(kind, arrays, 5e-4, -1e-3)
    assert rounding.explains(kind, name, 0.99 * most)
    assert not rounding.explains(kind, name, 1.01 * most + 1e-9)


def test_more_runs_may_explain_a_difference_that_is_near() -> None:
    arrays = {"w": [1.0]}
    assert measured("weights", arrays).may_explain(_difference(9.0))
    for runs, gap, expected in (
        (1, 0.029, True),
        (2, 0.029, True),
        (3, 0.029, False),  # these are enough
        (1, 0.031, False),
    ):
        rounding = measured("weights", arrays, *[1e-3] * runs)
        assert rounding.may_explain(_difference(gap)) is expected
    assert not rounding.may_explain(_difference(0.1, "another"))


def test_rounding_hides_no_more_than_it_does() -> None:
    rounding = measured("weights", {"w": [1.0]}, 1e-3)
    for gap, expected in ((0.0, False), (2e-3, True), (4e-3, False)):
        assert rounding.hides(_difference(gap)) is expected
    assert not rounding.hides(_difference(2e-3, "another"))


def test_what_was_left_out_is_said() -> None:
    arrays = {"w": [1.0], "b": [1.0], "c": [1.0]}
    rounding = measured("weights", arrays, 1e-2)
    assert rounding.explains("weights", "w", 1e-6)  # as good as equal
    assert rounding.texts() == []
    assert rounding.explains("weights", "w", 2e-3)
    assert rounding.explains("weights", "w", 1e-3)
    (text,) = rounding.texts()
    assert "differences of w up to 2e-03 of their largest" in text
    assert rounding.explains("weights", "b", 1e-2)
    assert "of b and 1 more up to 1e-02 of" in rounding.texts()[0]
    assert rounding.explains("weights", "c", 1e-3)
    assert "of b and 2 more up to 1e-02 of" in rounding.texts()[0]


def weights(value: float, step: int = 1) -> Event:
    arrays = {"w": np.array([1.0, value])}
    return Event("weights", "model", step, step, {}, arrays)


@pytest.mark.parametrize("gap", [np.nan, np.inf])
def test_rounding_explains_no_nan(gap: float) -> None:
    rounding = Rounding([[weights(2.0 + 1e-3)]], 1e-5)
    rounding.go_on_to(weights(2.0))
    assert rounding.explains("weights", "w", 1e-4)
    assert not rounding.explains("weights", "w", gap)


def test_rounding_of_later_steps_explains_nothing_before_them() -> None:
    rounding = Rounding([[weights(2.0 + 1e-6, 1), weights(2.1, 2)]], 1e-5)
    rounding.go_on_to(weights(2.0, 1))
    assert rounding.explains("weights", "w", 1e-6)
    assert not rounding.explains("weights", "w", 1e-2)
    rounding.go_on_to(weights(2.0, 2))
    assert rounding.explains("weights", "w", 1e-2)


def test_gradients_of_an_embedding_are_nudged_where_no_size_is_known() -> None:
    tf = pytest.importorskip("tensorflow")
    from hvd_keras._verify.session import _nudged

    table = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def step(rows):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, rows) ** 2)
        gradient = tape.gradient(loss, table)
        assert gradient.values.shape[0] is None
        nudged = _nudged(gradient, 1)
        return gradient.values, nudged.values

    plain, nudged = step(tf.constant([0, 1, 1]))
    gap = np.max(np.abs(plain - nudged)) / np.max(np.abs(plain))
    assert 0 < gap < 1e-4
    nothing = tf.zeros([2, 2])
    np.testing.assert_array_equal(_nudged(nothing, 1), nothing)
