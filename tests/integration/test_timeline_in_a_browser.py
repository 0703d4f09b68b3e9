"""The timeline page in a real browser: what mouse and keyboard do, and how it looks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elastic_harness.history.history import History
from elastic_harness.history.judge import Judgement, judge
from elastic_harness.report.timeline import timeline_html

from tests.browser import open_browser, why_no_browser
from tests.judge.mutants import RECORDED, load

if TYPE_CHECKING:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

pytestmark = pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser())

CLAUSE = "steps_lost: {at_most: 5}"


class Page:
    """A timeline that is open in a browser; a screenshot stays when it is closed."""

    def __init__(self, browser: WebDriver, page: Path, judgements: list[Judgement]) -> None:
        self.browser = browser
        self.path = page
        self.judgements = judgements

    def open(self, place: str = "") -> None:
        """Load the page at a place such as `#t=1`."""
        self.browser.get("about:blank")
        self.browser.get(self.path.as_uri() + place)

    def ticks(self) -> list[str]:
        """Return the labels of the time axis."""
        return self.texts("#ticks .tick-label")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of elements, shown or not."""
        found = self.browser.find_elements("css selector", selector)
        return [str(each.get_property("textContent")).strip() for each in found]

    def mouse(self) -> ActionChains:
        """Return selenium's chain of actions; selenium is imported where there is one."""
        from selenium.webdriver import ActionChains

        return ActionChains(self.browser, duration=50)

    def keys(self, *keys: str) -> None:
        """Press keys, one after the other."""
        self.mouse().send_keys(*keys).perform()

    def drawing(self) -> WebElement:
        """Return the drawing's element."""
        return self.browser.find_element("id", "drawing")


@pytest.fixture(scope="module", params=["light", "dark"])
def page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """A recorded run with a killed rank, whose page is open in a browser."""
    folder = tmp_path_factory.mktemp(f"browser-{request.param}")
    history = History.of(load(os.path.join(RECORDED, "crash-resume.jsonl.gz")))
    judgements = list(judge(history))
    assert all(judgements), "else they stand in another order"
    path = folder / "timeline.html"
    path.write_text(timeline_html(history, judgements))
    with open_browser(folder / "profile", scheme=request.param) as browser:
        opened = Page(browser, path, judgements)
        opened.open()
        yield opened
        browser.save_screenshot(str(folder / "timeline.png"))


def test_a_link_opens_the_page_zoomed_with_a_cursor_and_a_proof(page: Page) -> None:
    """The ticks are those of the part that is shown; the cursor's lines, the clause's records."""
    clause = [each.title for each in page.judgements].index(CLAUSE)
    page.open(f"#from=1&to=2&t=1.25&clause={clause + 1}")
    ticks = page.ticks()
    assert (ticks[0], ticks[1], ticks[-1]) == ("1 s", "1.05 s", "2 s")
    (near,) = page.texts("#near")
    assert "1.250 s, and 2 s before and after" in near
    assert "! crash: kill rank 1 (n1, pid 7122)" in near
    assert "run ended" not in near, "that is more than 2 s later"
    seqs = page.texts(".proof-row tr td:first-child")
    assert seqs == [str(seq) for seq in page.judgements[clause].verdict.events]
    assert len(page.texts("#marks line")) == len(seqs)


def test_a_click_on_the_drawing_puts_the_cursor_there(page: Page) -> None:
    """The list below is of the time that was clicked on."""
    page.open("#from=1&to=2")
    page.mouse().move_to_element(page.drawing()).click().perform()
    (title,) = page.texts("#near h2")
    # The drawing's middle; its first 130 of 1400 units are names.
    expected = 1 + (1400 / 2 - 130) / (1400 - 130)
    assert float(title.split()[0]) == pytest.approx(expected, abs=0.005)
    assert len(page.texts("#cursor line")) == 1


def test_the_wheel_zooms_once_the_drawing_is_clicked_and_scrolls_before(page: Page) -> None:
    """A page that zooms where one wants to scroll is a trap."""
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    page.open()
    whole = page.ticks()
    origin = ScrollOrigin.from_element(page.drawing())
    page.mouse().scroll_from_origin(origin, 0, 100).perform()
    assert page.ticks() == whole
    assert page.browser.execute_script("return scrollY") == 100
    page.mouse().move_to_element(page.drawing()).click().perform()
    page.mouse().scroll_from_origin(origin, 0, -100).scroll_from_origin(origin, 0, -100).perform()
    zoomed = page.ticks()
    assert zoomed != whole
    assert page.browser.execute_script("return scrollY") == 100


def test_a_drag_moves_the_part_that_is_shown_and_sets_no_cursor(page: Page) -> None:
    """What was under the mouse stays under it."""
    page.open("#from=1&to=2")
    width = page.drawing().rect["width"]
    move = -round(width * (1400 - 130) / 1400 / 4)
    mouse = page.mouse().move_to_element(page.drawing())
    mouse.click_and_hold().move_by_offset(move, 0).release().perform()
    first, last = (float(page.ticks()[place].split()[0]) for place in (0, -1))
    assert (first, last) == pytest.approx((1.25, 2.25), abs=0.051), "within a tick"
    assert page.texts("#near h2") == []


def test_the_keyboard_zooms_moves_and_sets_the_cursor(page: Page) -> None:
    """Without a mouse all of it can be had, and 0 shows everything again."""
    from selenium.webdriver.common.keys import Keys

    page.open()
    whole = page.ticks()
    page.open("#from=1&to=2")
    page.keys("+")
    assert (page.ticks()[0], page.ticks()[-1]) == ("1.26 s", "1.74 s")
    page.keys("-", Keys.ARROW_RIGHT)
    assert (page.ticks()[0], page.ticks()[-1]) == ("1.1 s", "2.1 s")
    page.keys(Keys.ARROW_LEFT)
    assert page.ticks()[0] == "1 s"
    page.keys(".", ".", ",")
    assert page.texts("#near h2") == ["1.010 s, and 2 s before and after"]
    page.keys("0")
    assert page.ticks() == whole


def test_a_clause_shows_its_proof_by_mouse_and_by_keyboard(page: Page) -> None:
    """Click or Enter opens it, the same again closes it."""
    from selenium.webdriver.common.keys import Keys

    clause = [each.title for each in page.judgements].index(CLAUSE)
    proof = [str(seq) for seq in page.judgements[clause].verdict.events]
    assert proof
    page.open()
    row = page.browser.find_elements("css selector", "tr.clause")[clause]
    page.mouse().scroll_to_element(row).move_to_element(row).click().perform()
    assert page.texts(".proof-row tr td:first-child") == proof
    page.mouse().move_to_element(row).click().perform()
    assert page.texts(".proof-row") == []
    page.open()
    # The drawing is the first stop of the Tab key, the clauses follow.
    page.keys(*[Keys.TAB] * (clause + 2), Keys.ENTER)
    assert page.texts(".proof-row tr td:first-child") == proof


def test_no_step_hides_the_name_of_its_rank(page: Page) -> None:
    """Names of ranks are drawn after every box."""
    page.open()
    drawn = page.browser.execute_script(
        "return [...document.querySelectorAll('#plot rect, #plot text[data-box]')]"
        ".map((each) => each.tagName)"
    )
    assert "text" in drawn
    assert "rect" not in drawn[drawn.index("text") :]


def test_the_script_reports_no_error(page: Page) -> None:
    """Nothing was refused by the page's own policy, and nothing raised."""
    page.open("#t=1")
    assert page.browser.execute("getLog", {"type": "browser"})["value"] == []
