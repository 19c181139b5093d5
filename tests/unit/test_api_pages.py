"""The pages of the API have every public name."""

from __future__ import annotations

import re
from pathlib import Path

import hvd_keras as hvd

_DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_has_a_place() -> None:
    text = "".join(p.read_text() for p in (_DOCS / "api").glob("*.md"))
    named = re.findall(r"^\.\. auto\w+:: hvd_keras\.(\w+)$", text, re.M)
    assert len(named) == len(set(named))
    classes = {"Average", "Sum", "Adasum", "Min", "Max", "Product"}
    modules = {"callbacks", "data", "exceptions", "elastic", "run"}
    errors = set(hvd.exceptions.__all__)
    left_out = {"__version__", *classes, *modules, *errors}
    assert set(hvd.__all__) - left_out == set(named) - {"exceptions"} - {
        "callbacks", "jax", "torch", "elastic",
    }  # fmt: skip


def test_dir_has_public_names_alone() -> None:
    shown = {name for name in dir(hvd) if not name.startswith("_")}
    assert shown == set(hvd.__all__) - {"__version__"}


def test_every_page_is_in_the_contents() -> None:
    for folder in (_DOCS, _DOCS / "api"):
        pages = {page.stem for page in folder.glob("*.md")} - {"index"}
        listed = (folder / "index.md").read_text()
        blocks = re.findall(r"```\{toctree\}(.*?)```", listed, re.S)
        names = set("\n".join(blocks).split())
        assert pages <= names, pages - names
