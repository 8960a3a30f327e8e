"""The interactive figures of the chapters, by keyboard alone; what they show is computed again here."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

import autograd as ag
from autograd import Tensor, ops
from minicait.experiments.results import read
from minicait.explain.colours import CIVIDIS, colourise

from .test_families import pixels
from .test_report import element, press, text

pytestmark = pytest.mark.browser
RESULTS = Path(__file__).parents[2] / "docs/results"
PAGES = {
    "softmax": "06_attention",
    "mix": "06_attention",
    "diamond": "02_tensors_and_graphs",
    "layer_scale": "07_going_deep",
    "film": "12_train_it",
}
MINUS = "\N{MINUS SIGN}"


@pytest.fixture
def figure(browser, site, request):
    """The page of the figure that the test is named after, or parametrised with, and the figure's selector."""

    def show(name, **look):
        browser.open(site / f"chapters/{PAGES[name]}.html", **look)
        assert browser.console_errors() == []
        assert all(address.startswith("file:") for address in browser.requests())
        return f"[data-figure={name}]"

    yield show
    assert browser.console_errors() == []


def tab_to(browser, figure, selector):
    """Press Tab until the focus is on a control of a figure, and can be seen there."""
    browser.run(f"const f = document.querySelector('{figure}'); f.tabIndex = -1; f.focus()")
    for _ in range(40):
        press(browser, "TAB")
        if browser.run(f"return document.activeElement.matches('{figure} {selector}')"):
            assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
            return
    raise AssertionError(f"Tab does not reach {selector}")


def texts(browser, selector):
    found = browser.run(f"return [...document.querySelectorAll('{selector}')].map(e => e.textContent)")
    return [each.strip() for each in found]


def numbers(browser, selector):
    return [float(each.replace(MINUS, "-")) for each in texts(browser, selector)]


# What every figure does


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_it_is_there_fits_and_can_be_read(figure, browser, name, width, dark):
    it = figure(name, width=width, dark=dark)
    assert browser.run(f"return document.querySelectorAll('{it}.ready').length") == 1
    assert browser.run("return document.documentElement.scrollWidth") <= width
    outside = """const figure = document.querySelector(arguments[0]), box = figure.getBoundingClientRect();
        return [...figure.querySelectorAll("*")].filter(e => {
            const own = e.getBoundingClientRect();
            return own.width && (own.right > box.right + 1 || own.left < box.left - 1);
        }).map(e => e.outerHTML.slice(0, 80))"""
    assert browser.run(outside, it) == []
    smallest = """const sizes = [...document.querySelector(arguments[0]).querySelectorAll("*")]
        .filter(e => e.getBoundingClientRect().width && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
        .map(e => parseFloat(getComputedStyle(e).fontSize) *
            (e.ownerSVGElement ? e.ownerSVGElement.getScreenCTM().a : 1));
        return Math.min(...sizes)"""
    assert browser.run(smallest, it) >= 9
    unnamed = """return [...document.querySelectorAll(`${arguments[0]} :is(input, button)`)]
        .filter(e => !(e.ariaLabel || e.textContent || e.labels[0].textContent).trim()).length"""
    assert browser.run(unnamed, it) == 0
    assert element(browser, f"{it} .status").get_attribute("aria-live") == "polite"


@pytest.fixture
def without_javascript(browser):
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    yield
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [1200, 400])
def test_without_javascript_it_shows_something(figure, browser, without_javascript, name, width):
    it = figure(name, width=width)
    assert not browser.run(f"return document.querySelectorAll('{it}.ready').length")
    parts = f"document.querySelectorAll('{it} :is(svg, table, li, img)')"
    shown = browser.run(f"return [...{parts}].map(e => e.clientHeight)")
    assert shown and max(shown) > 10 and browser.run("return document.documentElement.scrollWidth") <= width
    controls = browser.run(
        f"return [...document.querySelectorAll('{it} :is(button, input)')].filter(e => e.offsetWidth).length"
    )
    assert controls == 0
    assert element(browser, f"{it} figcaption").is_displayed()


@pytest.mark.parametrize("name", ["softmax", "mix"])
def test_the_first_state_is_the_same_with_and_without_javascript(figure, browser, without_javascript, name):
    it = figure(name)
    everything = f"return document.querySelector('{it}').textContent.replace(/\\s+/g, '')"
    before = browser.run(everything)
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    figure(name)
    assert browser.run(everything) == before and len(before) > 100


def test_a_page_without_a_figure_loads_none(site):
    assert "figures/" not in (site / "glossary.html").read_text()
    page = (site / "chapters/02_tensors_and_graphs.html").read_text()
    assert "figures/diamond.js" in page and "figures/softmax.js" not in page


# Softmax


def assert_softmax(browser, it, scores, temperature):
    weights = ops.softmax(np.array(scores) / temperature).numpy()
    largest, entropy = weights.max(), -(weights * np.log2(weights)).sum()
    assert np.allclose(numbers(browser, f"{it} li b"), weights, atol=6e-4)
    wanted = {"temperature": temperature, "largest": largest, "slope": largest * (1 - largest), "entropy": entropy}
    for name, value in wanted.items():
        shown = numbers(browser, f"{it} [data-out={name}]")
        assert np.allclose(shown, value, atol=6e-3 if name in ("temperature", "entropy") else 6e-4), name


def test_softmax(figure, browser):
    it, scores = figure("softmax"), [11, 7, 2, -1, -6, -10]
    assert_softmax(browser, it, scores, 48**0.5)
    tab_to(browser, it, "[name=temperature]")
    press(browser, *["ARROW_LEFT"] * 10)
    assert_softmax(browser, it, scores, 2**1.8)
    assert element(browser, f"{it} [name=temperature]").get_attribute("aria-valuetext") == f"{2**1.8:.2f}"
    tab_to(browser, it, "li:nth-child(3) input")
    press(browser, *["ARROW_RIGHT"] * 4)
    scores[2] += 4
    assert_softmax(browser, it, scores, 2**1.8)
    tab_to(browser, it, "[name=temperature]")
    press(browser, "HOME")
    assert_softmax(browser, it, scores, 0.5)
    press(browser, "END")
    assert_softmax(browser, it, scores, 64)
    tab_to(browser, it, "button")
    press(browser, "ENTER")
    assert_softmax(browser, it, scores, 1)
    bars = browser.run(
        f"return [...document.querySelectorAll('{it} .bar')].map(e => e.parentNode.style.getPropertyValue('--weight'))"
    )
    assert np.allclose(np.array(bars, float), ops.softmax(np.array(scores, float)).numpy())


# Mixing two heads


def assert_mixed(browser, it, matrix, before):
    scores = np.array(json.loads(element(browser, it).get_attribute("data-scores")), float)
    maps = ops.softmax(scores).numpy()
    heads = np.einsum("hg,gqk->hqk", matrix, scores if before else maps)
    heads = ops.softmax(heads).numpy() if before else heads
    shown = np.array(numbers(browser, f"{it} tbody td")).reshape(4, 5, 6)
    wanted = np.concatenate([maps, heads])
    wanted = np.concatenate([wanted, wanted.sum(-1, keepdims=True)], -1)
    assert np.allclose(shown, wanted, atol=6e-3)
    negative = (wanted.round(2) < 0).sum()
    assert browser.run(f"return document.querySelectorAll('{it} td.minus').length") == negative
    return heads


def test_mixing_two_heads(figure, browser):
    it = figure("mix")
    heads = assert_mixed(browser, it, [[1, -1], [0, 1]], before=False)
    assert heads.min() < -0.1 and np.allclose(heads[0].sum(axis=-1), 0)
    presets = {"0.5 0.5 0.5 0.5": 0.5 * np.ones((2, 2)), "0 1 1 0": np.eye(2)[::-1], "1 0 0 1": np.eye(2)}
    for name, matrix in presets.items():
        tab_to(browser, it, f"[data-matrix='{name}']".replace("'", '"'))
        press(browser, "ENTER")
        assert_mixed(browser, it, matrix, before=False)
    tab_to(browser, it, ".matrix span:nth-child(2) input")
    press(browser, "ARROW_UP", "ARROW_UP")
    assert_mixed(browser, it, [[1, 0], [0.5, 1]], before=False)
    assert "those of head 2\N{PRIME} to 1.50" in text(browser, f"{it} .status")
    tab_to(browser, it, "[type=radio]")
    press(browser, "ARROW_UP")
    heads = assert_mixed(browser, it, [[1, 0], [0.5, 1]], before=True)
    assert heads.min() > 0 and "every row sums to 1" in text(browser, f"{it} .status")


# A tower of two diamonds


def gradients():
    """The gradients of all values of the tower at 0.5, by their names in the figure."""
    x = Tensor(np.float64(0.5), requires_grad=True)
    tanh1 = x.tanh()
    a1, b1 = 0.5 * tanh1, 0.5 * x
    h = a1 + b1
    tanh2 = h.tanh()
    a2, b2 = 0.5 * tanh2, 0.5 * h
    y = a2 + b2
    named = {"x": x, "tanh1": tanh1, "a1": a1, "b1": b1, "h": h, "tanh2": tanh2, "a2": a2, "b2": b2, "y": y}
    return {name: g.item() for name, g in zip(named, ag.grad(y, list(named.values())), strict=True)}


def node(browser, it, name):
    """The gradient that a node of the diamond shows, and how many it waits for."""
    _, g, waiting = texts(browser, f"{it} [data-node={name}] text")
    return g, int(waiting)


def test_the_diamond_in_the_right_order(figure, browser):
    it, right = figure("diamond"), gradients()
    waiting = {name: node(browser, it, name)[1] for name in right}
    assert waiting == {"x": 2, "tanh1": 1, "a1": 1, "b1": 1, "h": 2, "tanh2": 1, "a2": 1, "b2": 1, "y": 0}
    tab_to(browser, it, "[name=step]")
    press(browser, "ENTER", "ENTER")
    assert node(browser, it, "h") == ("g = 0.5000", 1)  # one of two has arrived
    press(browser, "ENTER", "ENTER")
    assert node(browser, it, "h") == (f"g = {right['h']:.4f}", 0)
    press(browser, *["ENTER"] * 4)
    assert {name: node(browser, it, name) for name in right} == {n: (f"g = {g:.4f}", 0) for n, g in right.items()}
    half, slope = 0.5 * right["h"], 1 - np.tanh(0.5) ** 2
    assert numbers(browser, f"{it} [data-edge$=-x] text") == [round(half, 4), round(half * slope, 4)]
    assert f"dy/dx is {right['x']:.4f}, the right gradient" in text(browser, f"{it} .status")
    press(browser, "ENTER")  # nothing is left to run
    assert element(browser, f"{it} [name=step]").get_attribute("aria-disabled") == "true"
    assert node(browser, it, "x") == (f"g = {right['x']:.4f}", 0)


def test_the_diamond_too_early(figure, browser):
    it, right = figure("diamond"), gradients()
    wrong = 0.5 * (0.5 + 0.5 * (1 - np.tanh(0.5) ** 2))  # h has passed on only what the direct way sent it, 0.5
    assert abs(wrong - right["x"]) > 0.3
    tab_to(browser, it, "[type=radio]")
    press(browser, "ARROW_DOWN")
    tab_to(browser, it, "[name=step]")
    press(browser, *["ENTER"] * 3)
    assert "h runs too early" in text(browser, f"{it} .status") and node(browser, it, "h") == ("g = 0.5000", 1)
    press(browser, *["ENTER"] * 5)
    said = text(browser, f"{it} .status")
    assert "too late: it is lost" in said and f"dy/dx is {wrong:.4f}, and should be {right['x']:.4f}" in said
    assert node(browser, it, "x") == (f"g = {wrong:.4f}", 0)
    assert element(browser, f"{it} [data-edge=tanh2-h]").get_attribute("class") == "late"
    tab_to(browser, it, "[name=back]")
    press(browser, *["ENTER"] * 5)
    assert "h runs too early" in text(browser, f"{it} .status") and node(browser, it, "x") == ("", 2)
    tab_to(browser, it, "[name=reset]")
    press(browser, "SPACE")
    assert "Backward starts at y" in text(browser, f"{it} .status") and texts(browser, f"{it} .ran") == []


def test_the_diamond_without_javascript_is_the_finished_one(figure, browser, without_javascript):
    it, right = figure("diamond"), gradients()
    assert {name: node(browser, it, name) for name in right} == {n: (f"g = {g:.4f}", 0) for n, g in right.items()}
    assert f"dy/dx is {right['x']:.4f}" in text(browser, f"{it} .status")


# The scales of LayerScale


def heights(browser, it):
    """The heights of the bars as shares of their panel, by panel."""
    found = browser.run(
        f"return [...document.querySelectorAll('{it} .panels svg')].map(s => [...s.querySelectorAll('rect')]"
        ".map(r => Number(r.getAttribute('height')) / 100))"
    )
    return np.array(found)


def test_the_scales_grow(figure, browser):
    it, rows = figure("layer_scale"), read(RESULTS / "layer_scale_scales.csv")
    steps = sorted({row["step"] for row in rows})

    def saved(step):
        return np.array([[row[part] for row in rows if row["step"] == step] for part in ("attn", "mlp")])

    assert np.allclose(heights(browser, it), 1 / 7) and text(browser, f"{it} .status").startswith("Step 0 of ")
    tab_to(browser, it, "[type=range]")
    for _ in range(3):
        press(browser, "ARROW_RIGHT")
    assert np.allclose(heights(browser, it), (np.log10(saved(steps[3])) + 7) / 7)
    press(browser, "END")
    final = saved(steps[-1])
    assert final.min() > 1e-4 and np.allclose(heights(browser, it), (np.log10(final) + 7) / 7)
    said = text(browser, f"{it} .status")
    assert said.startswith(f"Step {steps[-1]} of {steps[-1]}: attention ")
    assert element(browser, f"{it} [type=range]").get_attribute("aria-valuetext") == said


def test_play_and_pause(figure, browser):
    it = figure("layer_scale")
    tab_to(browser, it, "button")
    press(browser, "ENTER")
    assert text(browser, f"{it} button") == "Pause"
    browser.wait(f"document.querySelector('{it} [type=range]').value >= 2")
    assert element(browser, f"{it} .status").get_attribute("aria-live") == "off"
    press(browser, "ENTER")
    assert text(browser, f"{it} button") == "Play"
    assert element(browser, f"{it} .status").get_attribute("aria-live") == "polite"


def test_reduced_motion(figure, browser):
    it = figure("layer_scale")
    still = {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    duration = f"return getComputedStyle(document.querySelector('{it} .panels rect')).transitionDuration"
    assert browser.run(duration) != "0s" and element(browser, f"{it} button").is_displayed()
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", still)
    browser.driver.refresh()
    assert browser.run(duration) == "0s" and not element(browser, f"{it} button").is_displayed()


# The film


def test_the_film(figure, browser):
    it = figure("film")
    data = json.loads(browser.run(f"return document.querySelector('{it} script').textContent"))
    assert data["scale"] == CIVIDIS.astype(int).tolist()
    count, last = len(data["images"]), len(data["steps"]) - 1
    maps = np.frombuffer(base64.b64decode(data["maps"]), np.uint8).reshape(last + 1, count, -1)
    side = int(maps.shape[-1] ** 0.5)

    def assert_frame(frame):
        for i in range(count):
            drawn = pixels(browser, f"{it} .film > div:nth-child({i + 1})")[..., :3]
            np.testing.assert_allclose(drawn, colourise(maps[frame, i].reshape(side, side) / 255), atol=3)
        guesses = texts(browser, f"{it} .guess")
        for guess, label, shown in zip(data["guesses"][frame], data["labels"], guesses, strict=True):
            assert shown == (f"{guess} \N{CHECK MARK}" if guess == label else f"{guess}, not {label}")
        said = f"Step {data['steps'][frame]} of {data['steps'][-1]}: {100 * data['accuracies'][frame]:.1f} %"
        assert text(browser, f"{it} .status").startswith(said)

    assert_frame(0)
    tab_to(browser, it, "[type=range]")
    press(browser, "END")
    assert_frame(last)
    press(browser, "ARROW_LEFT")
    assert_frame(last - 1)
    press(browser, "HOME", "ARROW_RIGHT")
    assert_frame(1)
    assert (maps[0] != maps[last]).any()
