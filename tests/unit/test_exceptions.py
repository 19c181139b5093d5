from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hvd_keras import exceptions
from hvd_keras._common import error_text
from hvd_keras.exceptions import HvdError
from hvd_keras.ops._errors import _CLASSES


def test_all_names_are_sorted_classes_under_one_base() -> None:
    assert list(exceptions.__all__) == sorted(exceptions.__all__)
    for name in exceptions.__all__:
        assert issubclass(getattr(exceptions, name), HvdError), name


def test_docstring_draws_the_whole_tree() -> None:
    for name in exceptions.__all__:
        assert name in (exceptions.__doc__ or "")


def test_docs_have_causes_and_cure_of_each() -> None:
    page = Path(__file__).parents[2] / "docs/errors.md"
    headings = {
        line.lstrip("# ")
        for line in page.read_text().splitlines()
        if line.startswith("##")
    }
    assert headings >= {*exceptions.__all__} - {"HvdError"}


# The core raises the class named after its status code.
@pytest.mark.parametrize(
    "code",
    [
        "InvalidArgument",
        "Mismatch",
        "PeerLost",
        "Stalled",
        "Shutdown",
        "NotInitialized",
        "Internal",
    ],
)
def test_there_is_a_class_for_each_status_code(code: str) -> None:
    header = Path(__file__).parents[2] / "tf_ops" / "common" / "status.h"
    assert f"k{code}," in header.read_text()
    assert issubclass(getattr(exceptions, f"{code}Error"), HvdError)


@pytest.mark.parametrize("code", _CLASSES)
def test_errors_of_ops_can_be_made_from_their_text(code: str) -> None:
    # Keras makes a new one that names the layer.
    error = _CLASSES[code]("the text")
    assert str(error) == error.message == "the text"


def test_wrong_use_is_a_value_error_too() -> None:
    for name in ("NotInitialized", "InvalidArgument", "Config"):
        assert issubclass(getattr(exceptions, f"{name}Error"), ValueError)
    assert not issubclass(exceptions.PeerLostError, ValueError)


def test_exceptions_survive_a_copy_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(exceptions.PeerLostError("rank 3")))
    assert type(copy) is exceptions.PeerLostError
    assert str(copy) == "rank 3"


def test_subjects_may_be_noted_while_a_text_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Text(str):
        def __contains__(self, part: str) -> bool:
            error_text.note_gradients("another thread's", ["path"])
            return super().__contains__(part)

    monkeypatch.setattr(error_text, "_subjects", {"a": "A", "b": "B"})
    text = error_text.with_subject(Text("about 'b'"))
    assert text == "about 'b' ('b' is B on this rank)"
