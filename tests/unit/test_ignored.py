"""An argument of Horovod that means nothing here says so once."""

from __future__ import annotations

import pytest

from hvd_keras._common.ignored import ignoring


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_an_unknown_argument_is_taken_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @ignoring("horovod.first", "old older")
    def function(x: int, *, y: int = 0) -> tuple[int, int]:
        return x, y

    assert function(1, y=2, old=3) == (1, 2)
    assert function(1, old=None, older="") == (1, 0)
    assert function(4, old=5) == (4, 0)
    assert _told(caplog) == [
        "hvd_keras: `horovod.first` ignores `old`, which has no meaning here."
    ]
    with pytest.raises(TypeError, match="oldest"):
        function(1, oldest=2)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_parameter_stays(
    by_name: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @ignoring(f"horovod.second{by_name}", "device")
    def function(x: int, device: str = "") -> tuple[int, str]:
        return x, device

    assert function(1, "") == (1, "")
    assert _told(caplog) == []
    for _ in range(2):
        if by_name:
            assert function(1, device="a") == (1, "a")
        else:
            assert function(1, "a") == (1, "a")
    (text,) = _told(caplog)
    assert "ignores `device`" in text


def test_each_class_and_argument_says_it_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Base:
        @ignoring("horovod.Base", "a b")
        def __init__(self, x: int = 0) -> None:
            self.x = x

    class Derived(Base):
        @ignoring("horovod.Derived", "a")
        def __init__(self, **params: int) -> None:
            super().__init__(**params)

    assert Derived(a=1, b=2, x=3).x == 3
    assert Base(a=1, b=0).x == 0
    assert [text.split("`")[1::2] for text in _told(caplog)] == [
        ["horovod.Derived", "a"],
        ["horovod.Base", "b"],
        ["horovod.Base", "a"],
    ]
