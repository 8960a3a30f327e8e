"""The site as a reader opens it: from disk, in Chromium, every page of it.

It is built for this, unless SITE names a folder in which it already is.
"""

import json
import re
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser
DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(str(p.relative_to(DOCS).with_suffix(".html")) for p in DOCS.rglob("*.md") if "_build" not in p.parts)
MORE = ["search.html", "genindex.html", "py-modindex.html", "_modules/autograd/tensor.html"]


def wrong(browser, page, **look):
    """List the mistakes of a page: console errors, requests to other hosts, formulas that are still source."""
    browser.open(page, **look)
    foreign = [address for address in browser.requests() if not address.startswith("file:")]
    source = (
        "return [...document.querySelectorAll('.math')].filter(e => !e.querySelector('.katex')).map(e => e.innerHTML)"
    )
    return browser.console_errors() + foreign + browser.run(source)


@pytest.mark.parametrize("page", PAGES + MORE)
def test_page(page, site, browser):
    assert wrong(browser, site / page) == []
    assert browser.driver.title.endswith("minicait")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_on_a_phone_in_the_dark(page, site, browser):
    assert wrong(browser, site / page, width=400, dark=True) == []
    assert browser.run("return document.documentElement.scrollWidth") <= 400


SMALL = """return [...document.querySelectorAll("article svg text")]
    .filter(e => e.getBoundingClientRect().width)
    .flatMap(e => [e, ...e.querySelectorAll("tspan")])
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
    .filter(e => parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b) < 8.9)
    .map(e => e.textContent)"""
OVERLAPPING = """const found = []
    for (const svg of document.querySelectorAll("article svg")) {
        const level = e => e.textContent.trim() && e.getBoundingClientRect().width && !e.getScreenCTM().b
        const texts = [...svg.querySelectorAll("text")].filter(level)
        const boxes = texts.map(e => e.getBoundingClientRect())
        boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left)
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
            if (across > 1 && down > 0.35 * Math.min(a.height, b.height))
                found.push(`${texts[j].textContent} | ${texts[i].textContent}`)
        }))
    }
    return found"""


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("page", PAGES)
def test_words_in_pictures_can_be_read(page, width, site, browser):
    """They have nine pixels or more, and none covers another."""
    browser.open(site / page, width=width)
    assert browser.run(SMALL) == []
    assert browser.run(OVERLAPPING) == []


@pytest.mark.parametrize("words, script", [
    ('<text x="9" y="30" font-size="8">little</text>', SMALL),
    ('<text x="9" y="30">one</text><text x="20" y="32">other</text>', OVERLAPPING),
])  # fmt: skip
def test_words_that_cannot_be_read_would_be_noticed(words, script, tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text(f'<article><svg width="200" height="100" font-size="12">{words}</svg></article>')
    browser.open(page)
    assert browser.run(script)
    page.write_text(
        '<article><svg width="200" height="100"><text x="9" y="30" font-size="12">one</text></svg></article>'
    )
    browser.open(page)
    assert not browser.run(script)


def test_formulas_are_there(site, browser):
    browser.open(site / "equations.html")
    assert browser.run('return document.querySelectorAll(".math .katex").length') > 10


def test_answers_are_hidden_until_they_are_asked_for(site, browser):
    browser.open(site / "chapters/16_a_kernel_for_the_gpu.html")
    answers = browser.driver.find_elements("xpath", "//details[summary='Answer']")
    assert len(answers) >= 2
    for answer in answers:
        text, summary = (answer.find_element("css selector", name) for name in ("p", "summary"))
        assert not text.is_displayed()
        browser.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", summary)
        summary.click()
        assert text.is_displayed()


def test_search_finds_a_word(site, browser):
    browser.open(site / "index.html")
    box = browser.driver.find_element("css selector", "input[name=q]")
    box.send_keys("softmax")
    box.submit()
    browser.wait('document.querySelectorAll("#search-results li a").length > 3')
    found = browser.run('return [...document.querySelectorAll("#search-results li a")].map(a => a.href)')
    assert any("chapters/16_a_kernel_for_the_gpu.html" in address for address in found)
    assert browser.console_errors() == []


CHAPTERS = sorted((DOCS / "chapters").glob("*.md"))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_is_a_notebook(chapter, site, browser):
    """With all of its code, in order, and nothing in its text that only the site understands. .ci/run runs them all."""
    notebook = json.loads((site / f"notebooks/{chapter.stem}.ipynb").read_text())
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells = re.findall(r"^```\{code-cell\} ipython3\n(?::[^\n]*\n)*(.*?)\n```$", chapter.read_text(), re.M | re.S)
    assert code == [cell.strip("\n") for cell in cells]
    text = "\n".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert not re.findall(r"```\{|\{[\w:+-]+\}`|\.md\)|\]\(#", text) and text.count("<details>") == text.count(
        "</details>"
    )
    browser.open(site / f"chapters/{chapter.stem}.html")
    assert browser.run('return document.querySelector("p.notebook a").href').endswith(f"notebooks/{chapter.stem}.ipynb")


def test_all_notebooks_are_in_one_archive(site):
    with zipfile.ZipFile(site / "notebooks.zip") as archive:
        assert archive.namelist() == [f"minicait/{chapter.stem}.ipynb" for chapter in CHAPTERS]


def test_code_can_be_copied_but_not_what_it_prints(site, browser):
    browser.open(site / "chapters/01_a_gradient_by_hand.html")
    browser.wait('document.querySelectorAll("button.copybtn").length')
    buttons, listings, outputs = (
        browser.run(f"return document.querySelectorAll('{selector}').length")
        for selector in ("button.copybtn", "div.highlight > pre", "div.output > div.highlight > pre")
    )
    assert outputs > 0 and buttons == listings - outputs


@pytest.mark.parametrize(
    "mistake",
    [
        '<img src="https://example.invalid/picture.png">',
        '<script>fetch("https://example.invalid/").catch(() => 0)</script>',
        "<script>undefined_name()</script>",
        '<div class="math" data-display="true">x^2</div>',
    ],
)
def test_a_mistake_would_be_noticed(mistake, tmp_path, browser):
    page = tmp_path / "page.html"
    page.write_text("<h1>A page</h1>")
    assert not wrong(browser, page)
    page.write_text(f"<h1>A page</h1>{mistake}")
    assert wrong(browser, page)
