"""The report as a person uses it: in a browser, with the mouse and with the keyboard."""

import re
from dataclasses import replace

import numpy as np
import pytest

from minicait.data.shapes import Shapes
from minicait.explain import block_graph, look, write_report
from minicait.models.cait import CaiT

pytestmark = pytest.mark.browser
# read from a canvas of the test's own, or Chromium warns about the page's canvas
PIXELS = """
const copy = new OffscreenCanvas(4, 4).getContext('2d', {willReadFrequently: true});
copy.drawImage(document.querySelector(arguments[0] + ' canvas'), 0, 0);
return [...copy.getImageData(0, 0, 4, 4).data];
"""


@pytest.fixture(scope="module")
def inside():
    model = CaiT(num_classes=7, img_size=32, patch_size=8, dim=32, heads=2, depth=3, layer_scale=0.5, seed=1)
    for name, parameter in model.named_parameters():
        if name.endswith("attn.qkv.weight"):  # otherwise attention would be nearly uniform
            parameter.data *= 8
    return model, look(model, Shapes(1, 32)[0][0], ["a < b", "c & d", "e", "f", "g", "h", "i"])


@pytest.fixture(scope="module")
def file(inside, tmp_path_factory):
    model, seen = inside
    return write_report(seen, tmp_path_factory.mktemp("page") / "report.html", "shape.png", block_graph(model))[0]


@pytest.fixture
def page(browser, file):
    browser.open(file)
    browser.wait("'ready' in document.body.dataset")
    yield browser
    assert browser.console_errors() == []
    assert browser.requests() == [file.resolve().as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').map(e => e.name)") == []


def element(page, selector):
    return page.driver.find_element("css selector", selector)


def press(page, *keys):
    from selenium.webdriver import ActionChains, Keys

    ActionChains(page.driver).send_keys(*(getattr(Keys, key) for key in keys)).perform()


def text(page, selector):
    return element(page, selector).text


BEFORE, AFTER = "[data-kind=before]", "[data-kind=after]"
FIRST = "[data-kind=class][data-layer='0'][data-head='0']"


def test_maps_have_the_colours_of_the_numbers(page, inside):
    from minicait.explain.colours import DIVERGING, colourise, rescale, rescale_around_zero

    _, seen = inside
    drawn = np.reshape(page.run(PIXELS, FIRST), (4, 4, 4))
    np.testing.assert_allclose(drawn[..., :3], colourise(rescale(seen.class_attention[0, 0])), atol=3)
    drawn = np.reshape(page.run(PIXELS, "[data-head=mean][data-layer='1']"), (4, 4, 4))
    np.testing.assert_allclose(drawn[..., :3], colourise(rescale(seen.class_attention[1].mean(axis=0))), atol=3)
    before, after = (maps[0, 0, seen.start].reshape(4, 4) for maps in (seen.before, seen.after))
    drawn = np.reshape(page.run(PIXELS, BEFORE), (4, 4, 4))[..., :3]
    np.testing.assert_allclose(drawn, colourise(rescale(before)), atol=6)
    drawn = np.reshape(page.run(PIXELS, AFTER), (4, 4, 4))[..., :3]
    np.testing.assert_allclose(drawn, colourise(rescale_around_zero(after), DIVERGING), atol=6)


@pytest.fixture
def other_page(browser, inside, tmp_path):
    """Mixing negates the first head in the first layer and zeroes it in the second; one map is nearly even."""
    model, seen = inside
    mixing, maps = seen.mixing.copy(), seen.class_attention.copy()
    mixing[:2, 0] = [-1, 0, 0], [0, 0, 0]
    maps[0, :2] = 1 + np.arange(16).reshape(4, 4) / 200
    maps[0, 1, 3, 3] = 1.2
    other = replace(seen, mixing=mixing, class_attention=maps)
    browser.open(write_report(other, tmp_path / "other.html", "shape.png", block_graph(model))[0])
    browser.wait("'ready' in document.body.dataset")
    return browser


def test_after_mixing_signs_are_told(other_page, inside):
    """The value farthest from zero may be negative: it is announced, and blue; zero is white."""
    _, seen = inside
    before = seen.before[0, 0, seen.start]
    found = re.search(r"zero at row (\d), column (\d) \(\N{MINUS SIGN}([\d.]+)\)\.$", text(other_page, "#chosen"))
    patch = 4 * (int(found[1]) - 1) + int(found[2]) - 1
    assert patch == before.argmax() and float(found[3]) == pytest.approx(before.max(), rel=0.02)
    assert other_page.run(PIXELS, AFTER)[4 * patch :][:3] == [5, 60, 130]
    other_page.run("document.querySelector('#layer').focus()")
    press(other_page, "ARROW_RIGHT")
    assert other_page.run(PIXELS, AFTER) == [248, 248, 248, 255] * 16


def test_an_even_map_says_so(other_page):
    assert text(other_page, f"{FIRST} .range") == "1 to 1.07, nearly even"
    assert text(other_page, "[data-kind=class][data-layer='0'][data-head='1'] .range") == "1 to 1.2"


def test_the_opacity_slider(page):
    opacity = "return getComputedStyle(document.querySelector('.map canvas')).opacity"
    assert page.run(opacity) == "0.7"
    element(page, "#opacity").click()  # its middle
    assert page.run(opacity) == "0.5" and text(page, "#opacity-value") == "50 %"
    press(page, "HOME")
    assert page.run(opacity) == "0"
    element(page, "#smooth").click()
    assert page.run("return getComputedStyle(document.querySelector('.map canvas')).imageRendering") == "auto"


def test_a_click_chooses_a_patch(page, inside):
    _, seen = inside
    before, words = page.run(PIXELS, BEFORE), text(page, "#chosen")
    from selenium.webdriver import ActionChains

    map_, patch = element(page, f"{FIRST} .map"), 0 if seen.start else 15
    size = map_.size["width"] * 3 / 8 * (1 if patch else -1)
    ActionChains(page.driver).move_to_element_with_offset(map_, size, size).click().perform()
    assert page.run(PIXELS, BEFORE) != before and text(page, "#chosen") != words
    where = "row 4, column 4" if patch else "row 1, column 1"
    assert where in text(page, "#chosen")
    value = seen.class_attention[0, 0].ravel()[patch]
    said = text(page, "#reading-value")
    assert said.startswith(f"Class attention, layer 1, head 1, {where}: ")
    assert float(said.rsplit(" ", 1)[1]) == pytest.approx(value, rel=0.01)
    assert "Eq. 8" in text(page, "#reading-equation") and page.run(
        "return document.querySelector('#reading math') !== null"
    )


def test_arrow_keys_choose_a_patch(page, inside):
    _, seen = inside
    page.run("document.querySelector(arguments[0]).focus()", f"{AFTER} .map")
    press(page, *["ARROW_UP"] * 4, *["ARROW_LEFT"] * 4)
    assert "Patch at row 1, column 1" in text(page, "#chosen")
    drawn, frame = page.run(PIXELS, AFTER), element(page, f"{AFTER} .cursor").location
    press(page, "ARROW_RIGHT", "ARROW_DOWN")
    assert "Patch at row 2, column 2" in text(page, "#chosen") and page.run(PIXELS, AFTER) != drawn
    assert element(page, f"{AFTER} .cursor").location != frame
    said = text(page, "#reading-value").replace("\N{MINUS SIGN}", "-")
    assert float(said.rsplit(" ", 1)[1]) == pytest.approx(seen.after[0, 0, 5, 5], rel=0.05, abs=0.002)
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"  # the focus can be seen


def test_layers_and_heads(page, inside):
    _, seen = inside
    drawn, mixture = page.run(PIXELS, BEFORE), text(page, "#mixture")
    page.run("document.querySelector('#layer').focus()")
    press(page, "END")
    assert text(page, "#layer-value") == "3" and "layer 3, head 1" in text(page, "#chosen")
    third = page.run(PIXELS, BEFORE)
    assert third != drawn and text(page, "#mixture") != mixture
    element(page, "input[name=head][value='1']").click()
    assert page.run(PIXELS, BEFORE) != third and "layer 3, head 2" in text(page, "#chosen")
    values = page.run("return document.querySelector('[data-kind=before]').values")
    np.testing.assert_allclose(values, seen.before[2, 1, seen.start], atol=1e-3)
    values = page.run("return document.querySelector('[data-kind=after]').values")
    np.testing.assert_allclose(values, seen.after[2, 1, seen.start], atol=1e-3)


def test_charts_are_read_with_the_arrow_keys(page, inside):
    _, seen = inside
    page.run("document.querySelectorAll('.chart')[1].querySelector('[tabindex=\"0\"]').focus()")
    assert text(page, "#reading-value") == f"Layer 1, attention: {seen.branches[0].ratio:.4g}"
    press(page, "ARROW_RIGHT")
    assert text(page, "#reading-value") == f"Layer 2, attention: {seen.branches[2].ratio:.4g}"
    press(page, "END")
    assert text(page, "#reading-value") == f"Layer C2, FFN: {seen.branches[-1].ratio:.4g}"
    page.run("document.querySelector('.predictions li').focus()")
    assert text(page, "#reading-value").startswith(seen.classes[seen.best[0]])


def test_equations_are_drawn(page):
    """The browser renders MathML: a fraction is higher than a line, and has a width."""
    boxes = page.run("return [...document.querySelectorAll('.equation')].map(e => [...e.querySelectorAll('math')]"
                     ".map(m => [m.getBoundingClientRect().width, m.getBoundingClientRect().height]))")  # fmt: skip
    assert len(boxes) == 10 and all(group and all(w > 30 and h > 10 for w, h in group) for group in boxes)
    plain, fraction = (page.run(f"return document.querySelector('#{i} math').getBoundingClientRect().height")
                       for i in ("eq-9", "eq-8"))  # fmt: skip
    assert fraction > 1.4 * plain


def test_links_lead_to_equations(page):
    page.run("document.querySelector(\"a[href='#eq-after']\").focus()")
    press(page, "ENTER")
    assert page.run("return document.activeElement.id") == "eq-after"
    top = page.run("return document.activeElement.getBoundingClientRect().top")
    assert 0 < top < page.run("return innerHeight")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_cut_off_and_text_can_be_read(page, file, width, dark):
    page.open(file, width, dark=dark)
    page.wait("'ready' in document.body.dataset")
    assert page.run("return document.documentElement.scrollWidth") <= width
    colours = page.run(
        "const s = getComputedStyle(document.body);"
        "const names = ['--ground', '--panel', '--ink', '--soft', '--strong', '--s0', '--s1'];"
        "return names.map(name => s.getPropertyValue(name).trim())"
    )
    light = [_luminance(colour) for colour in colours]
    for ground in light[:2]:
        for ink in light[2:5]:
            assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) > 4.5  # WCAG AA
    for ink in light[5:]:
        assert (max(light[0], ink) + 0.05) / (min(light[0], ink) + 0.05) > 3  # of graphics
    assert (light[0] < 0.1) == dark


def _luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_no_other_script_runs_and_nothing_is_loaded(browser, file):
    """Should markup ever slip into the page, its Content-Security-Policy stops it."""
    browser.open(file)
    browser.run("""
        const script = document.createElement('script');
        script.textContent = 'window.injected = 1';
        const image = document.createElement('img');
        image.src = 'https://example.org/pixel.png';
        document.body.append(script, image);
    """)
    assert browser.run("return window.injected") is None
    errors = browser.console_errors()
    assert len(errors) == 2 and all("Content Security Policy" in error for error in errors), errors
