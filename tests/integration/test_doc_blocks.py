"""The Python in README.md and docs runs as it stands."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

import doc_blocks
import jobs
import pytest

_PAGES_OF: dict[doc_blocks.Job, list[str]] = {}
for _page in doc_blocks.PAGES:
    for _job in doc_blocks.jobs_of(_page):
        _PAGES_OF.setdefault(_job, []).append(_page)


@pytest.fixture(autouse=True)
def _in_a_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # pages write files


def _run(job: doc_blocks.Job, pages: list[str]) -> None:
    for module in filter(None, (job.backend, job.needed)):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    outcome = jobs.run(
        *(*job.options(), "--"),
        *(sys.executable, doc_blocks.__file__, str(job), *pages),
        seconds=600,
        environ=jobs.clean_environ(
            KERAS_BACKEND=job.backend,
            PYTHONPATH=str(pathlib.Path(__file__).parents[2]),
        ),
    )
    assert outcome.status == 0, outcome.stdout + outcome.stderr
    ran = re.findall(r"ran (\S+)$", outcome.stdout, re.M)
    assert sorted(ran) == sorted(pages * job.num_ranks)


def test_readme() -> None:
    for job in doc_blocks.jobs_of("README.md"):
        _run(job, ["README.md"])


@pytest.mark.thorough
@pytest.mark.parametrize("job", _PAGES_OF, ids=str)
def test_pages(job: doc_blocks.Job) -> None:
    _run(job, [page for page in _PAGES_OF[job] if page != "README.md"])


def test_the_diff_of_the_readme_begins_with_the_unchanged_program() -> None:
    text = (doc_blocks.ROOT / "README.md").read_text()
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", text, re.M | re.S)
    unchanged, changed = doc_blocks.read("README.md")
    assert doc_blocks.side_of_diff(diff, "-") == unchanged.code
    assert doc_blocks.side_of_diff(diff, "+") == changed.code
    listed = [block.code for block in doc_blocks.read("docs/quickstart.md")]
    assert changed.code in listed


@pytest.mark.parametrize("page", doc_blocks.PAGES)
def test_no_block_escapes(page: str) -> None:
    text = (doc_blocks.ROOT / page).read_text()
    fences = re.findall(r"^ *```(\w*) *$", text, re.M)
    assert not {"py", "pycon", "python3", "Python"}.intersection(fences)
    blocks = [one for one in doc_blocks.read(page) if not one.is_brought]
    assert len(blocks) == sum(map(fences.count, ("python", "diff")))


@pytest.mark.parametrize(
    "mark", ["*Not run: why.*", "<!-- Runs on two ranks. -->"]
)
def test_a_mark_needs_a_reason(
    mark: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doc_blocks, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(f"\n{mark}\n```python\nx = 1\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:4: this mark is unknown"):
        doc_blocks.read("page.md")
