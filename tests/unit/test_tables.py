"""Tables of pandas as data: numbers of several kinds, and what is none."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_keras.data._arrays import to_tensors
from hvd_keras.data._host_arrays import to_arrays

pandas = pytest.importorskip("pandas")


@pytest.mark.parametrize("convert", [to_tensors, to_arrays])
def test_numbers_of_several_kinds_are_one_array(convert) -> None:
    columns = {"a": np.arange(3.0), "b": [True, False, True], "c": [4, 5, 6]}
    array = np.asarray(convert(pandas.DataFrame(columns)))
    assert array.dtype == "float64"
    np.testing.assert_array_equal(array, [[0, 1, 4], [1, 0, 5], [2, 1, 6]])


@pytest.mark.parametrize("convert", [to_tensors, to_arrays])
@pytest.mark.parametrize("kind", ["object", "category", "datetime64[ns]"])
def test_a_column_without_numbers_is_named(convert, kind: str) -> None:
    column = pandas.Series(["2026-01-01", "2026-01-02"]).astype(kind)
    frame = pandas.DataFrame({"a": [1.0, 2.0], "when": column})
    with pytest.raises(ValueError, match=r"get_dummies.*column 'when' of dty"):
        convert((frame, frame["a"]))


def test_a_list_of_rows_is_told_apart_from_arrays() -> None:
    rows = [[float(i), 1.0] for i in range(20)]
    with pytest.raises(ValueError, match=r"np\.asarray.* and 13 more"):
        to_arrays((rows, [0.0] * 20))
