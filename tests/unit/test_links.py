"""Links of the Markdown files lead somewhere.

Sphinx checks those between pages of docs; it does not see the files at the top,
nor what GitHub makes of the pages.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_FILES = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")


def _without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)


def _anchors(path: Path) -> set[str]:
    """Returns the names that GitHub gives to the headings of a file."""
    headings = re.findall(r"^#+ (.*)$", _without_code(path.read_text()), re.M)
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.strip().replace(" ", "-") for word in words}


@pytest.mark.parametrize(
    "path", _FILES, ids=lambda path: str(path.relative_to(_ROOT))
)
def test_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    dead = []
    for link in _LINK.findall(_without_code(path.read_text())):
        if re.match(r"\w+:", link):
            continue  # to another site, which a test must not ask
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (
            anchor and anchor not in _anchors(target.resolve())
        ):
            dead.append(link)
    assert dead == []


def test_the_readme_has_links() -> None:
    text = _without_code((_ROOT / "README.md").read_text())
    assert len(_LINK.findall(text)) > 20


def test_no_page_has_the_name_of_one_that_sphinx_makes() -> None:
    own = {"search", "genindex", "modindex", "py-modindex"}
    assert own.isdisjoint(path.stem for path in _FILES)
