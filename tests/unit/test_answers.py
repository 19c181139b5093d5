"""The questions of docs/questions.md are answered where its table says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"
_QUESTIONS = re.findall(
    r"^\| (.+?) \| \[[^\]]+\]\(([\w-]+\.md)(?:#([\w-]+))?\) "
    r"\| (\S+ \S+) \|$",
    (_DOCS / "questions.md").read_text(),
    re.M,
)


def _text_of(page: str) -> str:
    text = (_DOCS / page).read_text()
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def _anchors(page: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _text_of(page), re.M)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in headings
    }


def test_the_table_has_all_questions() -> None:
    table = _text_of("questions.md").split("\n## ")[1]
    assert len(_QUESTIONS) == table.count("\n| ") - 1 >= 44


@pytest.mark.parametrize(
    ("question", "page", "anchor", "search"),
    _QUESTIONS,
    ids=[row[0] for row in _QUESTIONS],
)
def test_an_answer_is_one_hop_from_home_and_can_be_searched(
    question: str, page: str, anchor: str, search: str
) -> None:
    assert not anchor or anchor in _anchors(page)
    home = _text_of("index.md").split("```{toctree}")[0]
    assert f"]({page}" in home
    # The search of the site wants all words, and reads no code.
    text = re.sub(
        r"^ *```\w+$.*?^ *```$", "", _text_of(page), flags=re.M | re.S
    )
    for word in search.split():
        start = re.escape(word.rstrip("s")[:8])
        assert re.search(rf"\b{start}", text, re.I), word
