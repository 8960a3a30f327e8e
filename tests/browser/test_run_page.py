"""The page of a run as a person uses it: in a browser, with the mouse and with the keyboard."""

import json

import numpy as np
import pytest

from minicait.data.shapes import Shapes
from minicait.explain.colours import colourise

from ..explain.test_report import Page
from ..train.runs import narrow_presets, tensors, train
from ..train.test_page import NASTY
from .test_families import OVERLAP, pixels
from .test_report import element, press, text

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run whose classes have hostile names."""
    out = tmp_path_factory.mktemp("runs")
    with narrow_presets(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shapes, "classes", tuple(NASTY))
        assert train(out) == 0
    return out / "shapes-tiny-1"


@pytest.fixture
def page(browser, folder):
    browser.open(folder / "index.html")
    browser.wait("'ready' in document.body.dataset")
    yield browser
    assert browser.console_errors() == []
    assert browser.requests() == [(folder / "index.html").resolve().as_uri()]


def film(folder):
    return json.loads(Page((folder / "index.html").read_text(encoding="utf-8")).scripts["numbers"])["film"]


def epoch(page):
    return text(page, "#epoch")


def test_it_begins_with_the_last_frame(page, folder):
    shown, maps = film(folder), tensors(folder / "page.safetensors")["film/maps"]
    assert epoch(page) == "3 of 3" and element(page, "#frame").get_attribute("aria-valuetext") == "epoch 3"
    drawn = pixels(page, "#film figure:nth-of-type(1)")[..., :3]
    np.testing.assert_allclose(drawn, colourise(maps[3, 0] / 255), atol=3)
    captions = page.run("return [...document.querySelectorAll('#film .guess')].map(e => e.textContent)")
    assert captions == [
        f"{shown['names'][str(guess)]} {100 * p:.1f}%"
        for guess, p in zip(shown["guesses"][3], shown["probabilities"][3], strict=True)
    ]
    right = [guess == label for guess, label in zip(shown["guesses"][3], shown["labels"], strict=True)]
    verdicts = page.run("return [...document.querySelectorAll('#film .verdict')].map(e => e.textContent)")
    assert verdicts == ["correct" if each else "wrong" for each in right]
    assert text(page, "#film-status").startswith(f"After epoch 3: {sum(right)} of {len(right)} correct.")


def test_the_slider_and_the_arrow_keys(page, folder):
    maps = tensors(folder / "page.safetensors")["film/maps"]
    page.run("document.querySelector('#frame').focus()")
    press(page, "HOME")
    assert epoch(page) == "0 of 3" and text(page, "#film-status").startswith("Before training: ")
    np.testing.assert_allclose(pixels(page, "#film figure")[..., :3], colourise(maps[0, 0] / 255), atol=3)
    press(page, "ARROW_RIGHT", "ARROW_RIGHT")
    assert epoch(page) == "2 of 3"
    np.testing.assert_allclose(pixels(page, "#film figure")[..., :3], colourise(maps[2, 0] / 255), atol=3)
    page.run("document.querySelector('#play').focus()")
    press(page, "ARROW_LEFT")  # also beside the slider
    assert epoch(page) == "1 of 3"
    press(page, "ARROW_LEFT", "ARROW_LEFT", "ARROW_LEFT")
    assert epoch(page) == "0 of 3"
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"  # the focus can be seen


def test_play_and_pause(page):
    button = element(page, "#play")
    assert button.text == "Play"
    page.run("document.querySelector('#play').focus()")
    press(page, "SPACE")
    assert button.text == "Pause" and element(page, "#film-status").get_attribute("aria-live") == "off"
    page.wait("document.querySelector('#epoch').textContent === '1 of 3'")  # from the beginning
    button.click()
    assert button.text == "Play" and element(page, "#film-status").get_attribute("aria-live") == "polite"
    now = epoch(page)
    button.click()
    page.wait("document.querySelector('#play').textContent === 'Play'")  # at the end it stops
    assert epoch(page) == "3 of 3" != now


def test_maps_of_the_mistakes(page, folder):
    maps = tensors(folder / "page.safetensors")["evaluation/maps"]
    assert len(maps) == 8 == len(page.driver.find_elements("css selector", "#mistakes canvas"))
    for i in (0, 7):
        drawn = pixels(page, f"#mistakes figure:nth-of-type({i + 1})")[..., :3]
        np.testing.assert_allclose(drawn, colourise(maps[i] / 255), atol=3)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_is_cut_off_or_overlaps(page, folder, width, dark):
    page.open(folder / "index.html", width, dark=dark)
    page.wait("'ready' in document.body.dataset")
    page.run("document.querySelector('details').open = true")
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run(OVERLAP) == []
    ground = page.run("return getComputedStyle(document.querySelector('.curves .ground')).fill")
    assert ground == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_counts_can_be_read(page, folder):
    """Text on coloured cells has a contrast of at least 4.5, in both modes."""
    script = """
    const parts = (c) => (c.match(/[\\d.]+/g) || []).slice(0, 3).map((v) => c.startsWith('color') ? +v : v / 255);
    const light = (c) => parts(c).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
      .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    return ['hit', 'miss'].flatMap((kind) => [0.01, 0.5, 1].map((share) => {
      const cell = document.querySelector('.confusion td');
      cell.className = kind;
      cell.style.setProperty('--share', share);
      const style = getComputedStyle(cell), [a, b] = [light(style.color), light(style.backgroundColor)];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }));"""
    for dark in (False, True):
        page.open(folder / "index.html", dark=dark)
        assert min(page.run(script)) > 4.5, dark


def test_names_are_text(page):
    assert page.run("return document.querySelectorAll('img, script').length") == 2  # its numbers and its script
    rows = page.run("return [...document.querySelectorAll('.confusion th[scope=row]')].map(e => e.textContent)")
    assert rows[:5] == NASTY[:5]
