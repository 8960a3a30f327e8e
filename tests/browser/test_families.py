"""The report of every family in a browser: what it shows has the colours of its numbers, and can be used."""

import re

import numpy as np
import pytest

from minicait.data.shapes import Shapes
from minicait.explain import block_graph, look, write_report
from minicait.explain.colours import DIVERGING, colourise, rescale, rescale_around_zero
from minicait.explain.maps import patch_labels
from minicait.models import create_model

from ..explain.test_families import CLASSES, SHOWN, sharpened
from .test_report import element, press, text

pytestmark = pytest.mark.browser
# read from a canvas of the test's own, or Chromium warns about the page's canvas
PIXELS = """
const canvas = document.querySelector(arguments[0] + ' canvas'), {width, height} = canvas;
const copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true});
copy.drawImage(canvas, 0, 0);
return [height, width, ...copy.getImageData(0, 0, width, height).data];
"""
OVERLAP = """
const boxes = [...document.querySelectorAll('section > *, .maps > *')].filter(e => e.getClientRects().length)
  .map(e => [e, e.getBoundingClientRect()]);
return boxes.flatMap(([a, p]) => boxes.filter(([b, q]) => a !== b && a.parentNode === b.parentNode
  && Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
  && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1)
  .map(([b]) => `${a.className || a.tagName} over ${b.className || b.tagName}`));
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("pages"), {}

    def report(name):
        if name not in found:
            model = sharpened(create_model(name, 10, seed=3))
            inside = look(model, Shapes(1, 32)[0][0], CLASSES)
            found[name] = inside, write_report(inside, folder / f"{name}.html", "a shape", block_graph(model))[0]
        return found[name]

    return report


@pytest.fixture
def opened(browser, reports):
    """A function that opens a report; what is asked of all pages is asked at the end."""
    files = []

    def open_report(name, **look):
        inside, file = reports(name)
        files.append(file)
        browser.open(file, **look)
        browser.wait("'ready' in document.body.dataset")
        return inside, browser

    yield open_report
    assert browser.console_errors() == []
    assert browser.requests() == [files[-1].resolve().as_uri()]


def pixels(page, selector):
    height, width, *values = page.run(PIXELS, selector)
    return np.reshape(values, (height, width, 4))


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1200, False)])
def test_the_page_of_each_family(opened, name, width, dark):
    """Nothing overlaps or is cut off, and every map is drawn."""
    _, page = opened(name, width=width, dark=dark)
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run(OVERLAP) == []
    drawn = page.run(
        "return [...document.querySelectorAll('figure[data-kind]')]"
        ".map(f => Boolean(f.values) && f.querySelector('.value').textContent.startsWith('here '))"
    )
    assert all(drawn)
    equations = page.run(
        "return [...document.querySelectorAll('.equation math')].map(m => m.getBoundingClientRect().width)"
    )
    assert equations and all(w > 20 for w in equations)


def test_a_slider_selects_the_layer_of_the_class_token(opened):
    inside, page = opened("deit_mini_distilled_32")
    first = "[aria-labelledby=h-class-attention]"
    assert page.run(
        f"return [...document.querySelectorAll('{first} .layer:not([hidden])')].map(e => e.dataset.label)"
    ) == ["6"]
    last = pixels(page, f"{first} [data-layer='5'][data-head='1']")[..., :3]
    np.testing.assert_allclose(last, colourise(rescale(inside.class_attention[5, 1], 0.95)), atol=3)
    assert (last == colourise(np.ones(1))).all(axis=-1).sum() == 4  # 5 % of 64 patches share the brightest colour
    page.run(f"document.querySelector('{first} .layers').focus()")
    press(page, "HOME", "ARROW_RIGHT")
    assert text(page, f"{first} .controls output") == "2"
    assert page.run(
        f"return [...document.querySelectorAll('{first} .layer:not([hidden])')].map(e => e.dataset.label)"
    ) == ["2"]
    assert element(page, f"{first} [data-layer='1'][data-head=mean]").is_displayed()
    shares = ", ".join(f"{share:.1%}" for share in inside.to_itself[1])
    assert text(page, f"{first} .layer:not([hidden]) p") == f"Attention to itself, by head: {shares}."
    other = "[aria-labelledby=h-distillation]"
    assert element(page, f"{other} [data-layer='5'][data-head='0']").is_displayed()  # it has a slider of its own
    drawn = pixels(page, f"{other} [data-layer='5'][data-head='0']")[..., :3]
    np.testing.assert_allclose(drawn, colourise(rescale(inside.distillation[5, 0], 0.95)), atol=3)


def test_heads_that_do_not_talk_have_one_map(opened):
    inside, page = opened("deit3_mini_32")
    assert page.run("return document.querySelector('[data-kind=after]')") is None and text(page, "#mixture") == ""
    found = re.search(
        r"head 1: its attention is largest at row (\d), column (\d) \(([\d.]+)\)\.$", text(page, "#chosen")
    )
    own = inside.before[0, 0, inside.start]
    assert 8 * (int(found[1]) - 1) + int(found[2]) - 1 == own.argmax()
    assert float(found[3]) == pytest.approx(own.max(), rel=0.02)


def test_rows_of_a_matrix(opened):
    """All rows of A, at the places of their patches; a click on one selects its patch."""
    from selenium.webdriver import ActionChains

    inside, page = opened("resmlp_mini_32")
    whole = pixels(page, "[data-kind=rows]")
    size = whole.shape[0] // 72  # pixels of a cell; a patch has 8, and half a line on each side
    assert whole.shape == (72 * size, 72 * size, 4)
    cells = whole[size - 1 :: size, size - 1 :: size].reshape(8, 9, 8, 9, 4).transpose(0, 2, 1, 3, 4)
    assert (cells[:, :, 8] == 0).all() and (cells[:, :, :, 8] == 0).all()
    want = colourise(rescale_around_zero(inside.cross_patch[0]), DIVERGING).reshape(8, 8, 8, 8, 3)
    np.testing.assert_allclose(cells[:, :, :8, :8, :3], want, atol=6)
    map_ = element(page, "[data-kind=rows] .map")
    page.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", map_)
    offset = map_.size["width"] * 7 / 16
    ActionChains(page.driver).move_to_element_with_offset(map_, -offset, offset).click().perform()
    assert text(page, "#chosen").startswith("Patch at row 8, column 1, layer 1: its weight is farthest from zero at ")
    row = inside.cross_patch[0, 56]
    said = text(page, "#reading-value").replace("\N{MINUS SIGN}", "-")
    assert float(said.rsplit(" ", 1)[1]) == pytest.approx(row[np.abs(row).argmax()], rel=0.02)
    drawn = pixels(page, "[data-kind=before]")[..., :3]
    np.testing.assert_allclose(drawn, colourise(rescale_around_zero(row), DIVERGING).reshape(8, 8, 3), atol=6)
    page.run("document.querySelector('#layer').focus()")
    press(page, "END")
    assert (pixels(page, "[data-kind=rows]") != whole).any() and "layer 6" in text(page, "#chosen")


def test_each_class_has_a_map(opened):
    inside, page = opened("patchconvnet_mini_multi_32")
    for column in range(3):
        drawn = pixels(page, f"[data-maps=class_maps][data-head='{column}']")[..., :3]
        np.testing.assert_allclose(drawn, colourise(rescale(inside.class_maps[column])), atol=3)
        name = f"{CLASSES[inside.best[column]]}, {inside.probabilities[inside.best[column]]:.1%}"
        assert text(page, f"[data-maps=class_maps][data-head='{column}'] b") == name


def test_each_patch_has_a_class(opened):
    inside, page = opened("lvvit_mini_32")
    labels = patch_labels(inside)
    drawn = pixels(page, "[data-kind=classes]").reshape(64, 4)
    np.testing.assert_allclose(drawn[:, 3], 255 * labels.probability, atol=1)
    np.testing.assert_allclose(drawn[:, :3], np.array(labels.colours)[labels.which], atol=4)  # rounded by opacity
    names = page.run("return [...document.querySelectorAll('.classes li')].map(e => e.textContent)")
    assert names == [name for name, _ in labels.legend]
    page.run("document.querySelector('[data-kind=classes] .map').focus()")
    press(page, *["ARROW_UP"] * 8, "HOME")
    said = f"{labels.names[labels.which[0]]}, {labels.probability[0]:.3g}"
    assert text(page, "#reading-value") == f"Most probable class, row 1, column 1: {said}"
    assert text(page, "[data-kind=classes] .value") == f"here {said}"
