"""A file is replaced as a whole, or it stays as it was."""

import pathlib

import pytest

from hvd_keras._common.files import replacing


@pytest.fixture
def old(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "model.keras"
    path.write_text("old")
    return path


def test_file_is_replaced_when_it_is_complete(old: pathlib.Path) -> None:
    with replacing(str(old)) as partial:
        pathlib.Path(partial).write_text("new")
        assert old.read_text() == "old"
    assert old.read_text() == "new"
    assert list(old.parent.iterdir()) == [old]


def test_error_keeps_the_old_file(old: pathlib.Path) -> None:
    def fill_the_disk() -> None:
        with replacing(str(old)) as partial:
            pathlib.Path(partial).write_text("ne")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fill_the_disk()
    assert old.read_text() == "old"
    assert list(old.parent.iterdir()) == [old]


def test_writing_nothing_keeps_the_old_file(old: pathlib.Path) -> None:
    """Under a strategy `Model.save` writes nothing on ranks other than 0."""
    with replacing(str(old)):
        pass
    assert old.read_text() == "old"
