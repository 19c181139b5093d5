"""The report page in a real browser, without a network."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selection import thorough_except
from simulated_recordings import Job, jitter, slow

from hvd_keras._observe import report

pytestmark = pytest.mark.nightly
# Screenshots to look at, if this names a folder.
SHOTS = os.environ.get("REPORT_SCREENSHOTS")
JOBS = {
    "2": Job(size=2, num_steps=60, input_ms=slow(1, 12.0)),
    "8": Job(
        size=8,
        ranks_per_host=4,
        num_steps=40,
        input_ms=jitter(1, 6),
        bucket_bytes=(16 << 20, 8 << 20, 1 << 20, 4 << 10),
        names=["<b>bold</b>" + "/very_long_name" * 8, "b", "c", "d"],
    ),
    "512": Job(
        size=512, num_steps=50, input_ms=lambda r, s: 1 + 9.0 * (r == 300)
    ),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs a browser (apt-get install chromium)")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="pip install '.[browser]'"
    )
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("reports")
    for name, job in JOBS.items():
        report.write_page(job.record(), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in JOBS}


@pytest.fixture
def open_page(
    browser: Any, files: dict[str, pathlib.Path]
) -> Iterator[Callable[..., Any]]:
    """Opens a report; at the end, it must have logged and fetched nothing."""
    complaints: list[str] = []
    contexts = []

    def open_it(name: str, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:"))
                else complaints.append(request.url)
            ),
        )
        page.goto(files[name].as_uri())
        page.wait_for_selector("figure.chart svg")
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


def num_marks(page: Any, section: str) -> int:
    found: int = page.locator(f"#{section} svg g[aria-label=bar] rect").count()
    return found


WAYS = [
    (name, width, scheme)
    for name in JOBS
    for width in (1280, 400)
    for scheme in ("light", "dark")
]
QUICK = (("2", 1280, "light"), ("512", 400, "dark"))


@pytest.mark.parametrize("way", thorough_except(WAYS, *QUICK))
def test_it_fits_the_window(
    open_page: Callable[..., Any], way: tuple[str, int, str]
) -> None:
    name, width, scheme = way
    page = open_page(name, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    rows = min(int(name), 64)
    assert num_marks(page, "parts") == 5 * rows
    assert num_marks(page, "heat") > rows
    # Marks and texts stay within their charts.
    for box in page.locator("figure.chart").all():
        assert box.bounding_box()["width"] <= width
    if SHOTS:
        path = pathlib.Path(SHOTS, f"{name}_{width}_{scheme}.png")
        page.screenshot(path=path, full_page=True)


def test_dark_and_light_differ_and_can_be_read(
    open_page: Callable[..., Any],
) -> None:
    lightness = {}
    for scheme in ("light", "dark"):
        page = open_page("2", scheme=scheme)
        lightness[scheme] = page.evaluate(
            """() => ["color", "backgroundColor"].map((name) => {
              const style = getComputedStyle(document.body)[name];
              return style.match(/\\d+/g).slice(0, 3).reduce(
                (sum, one) => sum + Number(one), 0) / 3;
            })"""
        )
    text, background = lightness["light"]
    assert text < 90 < 200 < background
    text, background = lightness["dark"]
    assert background < 60 < 180 < text


def test_the_advice_is_on_the_page(open_page: Callable[..., Any]) -> None:
    text = open_page("2").locator("#advice .problem .text").inner_text()
    assert text.startswith("Rank 1 (host a, pid 4001) was last in 100 %")
    assert "its input is slow" in text
    text = open_page("512").locator("#advice .problem .text").inner_text()
    assert text.startswith("Rank 300 ")


def test_a_mark_shows_its_figures(open_page: Callable[..., Any]) -> None:
    page = open_page("2", scheme="dark")
    page.locator("#parts").scroll_into_view_if_needed()
    page.locator("#parts svg g[aria-label=bar] rect").nth(0).hover()
    tip = page.locator("#parts svg g[aria-label=tip] text")
    tip.wait_for()
    shown = tip.text_content()
    assert "Rank 0" in shown
    assert "ms (" in shown
    background = page.evaluate(
        """() => getComputedStyle(
          document.querySelector("#parts svg g[aria-label=tip] path")).fill"""
    )
    assert background == "rgb(27, 33, 42)"  # dark, as its card


def test_keys_go_through_the_marks(open_page: Callable[..., Any]) -> None:
    page = open_page("2")
    page.locator("#parts figure").focus()
    said = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        said.append(page.locator("#live").text_content())
    assert len(set(said)) == 3
    assert all("Rank " in text for text in said)
    assert page.locator("#parts svg g[aria-label=tip] text").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#parts svg g[aria-label=tip] text").count() == 0


def test_a_table_sorts_by_mouse_and_by_keys(
    open_page: Callable[..., Any],
) -> None:
    page = open_page("8")
    section = page.locator("#last")
    column = section.locator("tbody tr td:nth-child(1)")
    heading = section.locator("th", has_text="Rank").first

    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column.all_inner_texts() == list("76543210")
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column.all_inner_texts() == list("01234567")


def test_everything_is_in_reach_of_the_tab_key(
    open_page: Callable[..., Any],
) -> None:
    page = open_page("2")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                """() => {
                  const at = document.activeElement;
                  const section = at.closest("section");
                  return `${at.tagName} ${section ? section.id : ""}`;
                }"""
            )
        )
    assert {
        *("A ", "FIGURE parts", "FIGURE heat", "FIGURE speed", "BUTTON last"),
        *("SUMMARY parts", "SUMMARY heat", "BUTTON settings"),
    } <= reached


def test_a_table_stands_for_each_chart(open_page: Callable[..., Any]) -> None:
    page = open_page("512")
    assert page.locator("section:has(figure)").count() == 4
    assert page.locator("section:has(figure):has(details table)").count() == 4
    page.locator("#parts summary").click()
    assert page.locator("#parts tbody tr").count() == 512


def test_names_are_text(open_page: Callable[..., Any]) -> None:
    page = open_page("8")
    assert page.locator("#tensors td b").count() == 0
    assert page.locator("#tensors td", has_text="<b>bold</b>").count() == 1
