"""The report: one file without requests, with the numbers of `record`; bad input is one sentence."""

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import minicait
from minicait.cli import main
from minicait.data.picture import normalise
from minicait.explain import block_graph, look, report, write_report
from minicait.explain.charts import charts
from minicait.explain.colours import DIVERGING, colourise, rescale_around_zero
from minicait.explain.packing import STEPS, Packed, pack
from minicait.explain.pictures import saliency_picture
from minicait.files.tensorfile import write_tensors
from minicait.models.cait import CaiT
from minicait.models.variants import Variant
from minicait.nn import Module

NAMES = ['<b>"cat" & co</b>', "</script><script>alert(1)</script>", "{{title}}", "dog", "owl", "cow"]


@pytest.fixture(scope="module")
def model():
    return CaiT(num_classes=6, img_size=(16, 24), patch_size=8, dim=16, heads=2, depth=3, layer_scale=0.1, seed=1)


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)


@pytest.fixture(scope="module")
def inside(model, image):
    return look(model, image, NAMES)


@pytest.fixture(scope="module")
def recorded(model, image):
    with minicait.record(model.eval()) as seen:
        logits = model(normalise(image)[None]).numpy()[0]
    return seen, logits


class Page(HTMLParser):
    """Tags with their attributes, and the texts of scripts by their id."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.open = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "script":
            self.open = dict(attributes).get("id", "code")
            self.scripts[self.open] = ""

    def handle_endtag(self, tag):
        self.open = None if tag == "script" else self.open

    def handle_data(self, data):
        if self.open is not None:
            self.scripts[self.open] += data

    def all(self, **wanted):
        keys = {key.replace("_", "-"): value for key, value in wanted.items()}
        return [have for _, have in self.tags if all(have.get(key) == value for key, value in keys.items())]


def test_look_tells_what_record_recorded(inside, recorded, model):
    seen, logits = recorded
    p = np.exp(logits - logits.max())
    np.testing.assert_allclose(inside.probabilities, p / p.sum(), rtol=1e-5)
    assert inside.grid == (2, 3) and inside.best[0] == logits.argmax() and len(inside.best) == 5
    for layer in range(2):
        want = seen.class_attention[f"blocks_token_only.{layer}.attn"][0, :, 0]
        np.testing.assert_array_equal(inside.class_attention[layer].reshape(2, 6), want[:, 1:])
        np.testing.assert_array_equal(inside.to_itself[layer], want[:, 0])
    for layer in range(3):
        np.testing.assert_array_equal(inside.before[layer], seen.attention[f"blocks.{layer}.attn"].before[0])
        np.testing.assert_array_equal(inside.after[layer], seen.attention[f"blocks.{layer}.attn"].after[0])
    assert [b.name for b in inside.branches][:3] == ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"]
    assert len(inside.branches) == 2 * (3 + 2)
    for branch in inside.branches:
        assert branch.ratio == seen.residual[branch.name].ratio and branch.scale == pytest.approx(0.1)


def test_mixing_turns_before_into_after(inside):
    """The page computes one from the other."""
    weights, bias = inside.mixing[..., :-1], inside.mixing[..., -1]
    want = np.einsum("lhg,lgqk->lhqk", weights, inside.before) + bias[..., None, None]
    np.testing.assert_allclose(inside.after, want, atol=1e-6)


def test_look_leaves_the_model_as_it_was(model, image):
    model.train()
    look(model, image)
    assert model.training
    model.head.bias.data[2] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        look(model, image)
    model.head.bias.data[2] = 0


def unpack(packed: Packed, heads: int, patches: int) -> np.ndarray:
    """Invert `pack`, as the page does."""
    content = zlib.decompress(base64.b64decode(packed.text))
    shape = (len(packed.layers), heads, patches)
    count = int(np.prod(shape))
    low, span = np.frombuffer(content, "<f2", 2 * count).astype(np.float32).reshape(2, *shape)
    codes = np.frombuffer(content, np.uint8, offset=4 * count).reshape(*shape, patches)
    return low[..., None] + codes * (span / packed.steps)[..., None]


@pytest.mark.parametrize("sharpness", [0.01, 1, 20])
def test_packing_rounds_by_half_a_step(sharpness):
    scores = np.random.default_rng(0).standard_normal((3, 2, 30, 30)) * sharpness
    maps = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    for room, steps in ((10**6, 255), (4500, None)):
        packed = pack(maps.astype(np.float32), room)
        assert packed.layers == [0, 1, 2] and packed.steps in STEPS and steps in (None, packed.steps)
        low, high = maps.min(axis=-1, keepdims=True), maps.max(axis=-1, keepdims=True)
        off = np.abs(unpack(packed, 2, 30) - maps)
        assert (off <= (high - low) / packed.steps / 2 + 1e-3 * high).all()


def test_packing_leaves_layers_out_where_there_is_no_room():
    maps = np.random.default_rng(0).random((12, 2, 30, 30)).astype(np.float32)
    packed = pack(maps, 5000)
    assert 2 <= len(packed.layers) < 12 and packed.layers[0] == 0 and packed.layers[-1] == 11
    assert len(packed.text) <= 5000 * 4 / 3 + 4
    assert pack(maps, 1).layers == [11]  # at least one layer is kept


def test_numbers_in_the_page(inside):
    page = Page(report(inside, "photo.jpg", ""))
    numbers = json.loads(page.scripts["numbers"])
    np.testing.assert_allclose(numbers["class_attention"], inside.class_attention.reshape(2, 2, 6), rtol=1e-4)
    np.testing.assert_allclose(numbers["mixing"], inside.mixing, rtol=1e-4, atol=1e-9)
    assert (numbers["rows"], numbers["columns"], numbers["layers"]) == (2, 3, [0, 1, 2])
    packed = pack(inside.before)
    assert page.scripts["packed"] == packed.text and numbers["steps"] == 255
    np.testing.assert_allclose(unpack(packed, 2, 6), inside.before, atol=1e-3)
    bars = [have["aria-label"] for have in page.all(data_equation="eq-ratio", role="img")]
    assert bars[0] == f"Layer 1, attention: {inside.branches[0].ratio:.4g}"
    assert bars[-1] == f"Layer C2, FFN: {inside.branches[-1].ratio:.4g}" and len(bars) == 10
    guesses = [have["aria-label"] for have in page.all(data_equation="eq-probability")]
    assert len(guesses) == 5 and guesses[0].endswith(f": {inside.probabilities.max():.2%}")


@pytest.mark.parametrize(
    ("ratios", "ticks"),
    [
        ((0.13, 0.62), ["0.1", "1"]),
        ((0.004, 2.5), ["0.001", "0.01", "0.1", "1", "10"]),
        ((1e-3, 1e-1), ["0.001", "0.01", "0.1"]),
        ((0.1, 0.1), ["0.1", "1"]),
        ((2e-9, 0.5), ["1e-09", "1e-07", "1e-05", "0.001", "0.1", "10"]),
    ],
)
def test_a_logarithmic_scale_has_powers_of_ten(inside, ratios, ticks):
    branches = [b._replace(ratio=ratios[i % 2]) for i, b in enumerate(inside.branches)]
    marks = charts(replace(inside, branches=branches))[1].marks
    assert [mark.text for mark in marks if mark.kind == "text" and mark.coordinates[2] == 1] == ticks
    lines = [mark.coordinates[1] for mark in marks if mark.kind == "rule"]
    dots = [mark.coordinates[1] for mark in marks if mark.kind == "dot"]
    assert min(lines) - 0.1 <= min(dots) <= max(dots) <= max(lines) + 0.1
    np.testing.assert_allclose(np.diff(lines), lines[1] - lines[0])


def test_names_are_escaped(inside):
    likely = replace(inside, probabilities=np.array([0.4, 0.3, 0.2, 0.1, 0, 0]))
    text = report(likely, '<i>"a" & b</i>', "")
    assert "&lt;b&gt;&quot;cat&quot; &amp; co&lt;/b&gt;" in text and '<b>"cat' not in text and "alert(1)</" not in text
    assert text.count("<title>&lt;i&gt;&quot;a&quot; &amp; b&lt;/i&gt;") == 1 and '<i>"a' not in text
    assert ">{{title}}<" in text  # a class name is not a placeholder
    page = Page(text)
    assert [have["aria-label"].rsplit(":")[0] for have in page.all(data_equation="eq-probability")][:3] == NAMES[:3]
    assert len(page.scripts) == 3


def test_the_page_asks_for_nothing(inside, model):
    text = report(inside, "photo.jpg", block_graph(model))
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[\w./-]*", re.sub(r"base64,[\w+/=]+", "", text)))
    assert addresses - {"http://www.w3.org/2000/svg"} == set()
    assert not re.search(r"@import|\bfetch\(|XMLHttpRequest|\bimport\b *[('\"]", text)
    for tag, have in Page(text).tags:
        for key in ("src", "href"):
            assert have.get(key, "#")[:5] in ("data:", "#") or have[key].startswith("#"), (tag, have)
    assert set(re.findall(r"\{\{\w+\}\}", text)) == {"{{title}}"}  # the class name; all placeholders are filled


def test_the_page_can_be_used_without_eyes_or_hands(inside, model):
    page = Page(report(inside, "photo.jpg", block_graph(model)))
    ids = {have["id"] for _, have in page.tags if "id" in have}
    for tag, have in page.tags:
        if tag == "img":
            assert have["alt"]
        if "aria-labelledby" in have:
            assert have["aria-labelledby"] in ids
        for key in ("data-equation",):
            assert have.get(key) is None or have[key] in ids
        if tag == "a":
            assert have["href"][1:] in ids
    assert len(page.all(role="application", tabindex="0")) == 2 * 3 + 2  # maps
    assert page.all(id="chosen", aria_live="polite")
    assert all(have["aria-label"] for have in page.all(role="application"))
    assert ("html", {"lang": "en"}) in page.tags


def test_a_model_without_self_attention(image):
    alone = CaiT(num_classes=2, img_size=(16, 24), patch_size=8, dim=16, heads=2, depth=0)
    text = report(look(alone, image), "photo.jpg", block_graph(alone))
    assert json.loads(Page(text).scripts["numbers"])["layers"] == [] and 'aria-labelledby="h-self" hidden' in text


def test_heads_that_do_not_talk(image):
    """Nothing changes where they would be mixed, on the page either."""
    plain = Variant(talking_heads=False, num_classes=2, img_size=(16, 24), patch_size=8, dim=16, heads=2, depth=3)
    inside = look(plain, image)
    np.testing.assert_array_equal(inside.after, inside.before)
    np.testing.assert_array_equal(inside.mixing, np.broadcast_to(np.eye(2, 3), (3, 2, 3)))
    numbers = json.loads(Page(report(inside, "photo.jpg", block_graph(plain))).scripts["numbers"])
    assert numbers["layers"] == [0, 1, 2] and numbers["mixing"] == inside.mixing.tolist()


class Doubled(Module):
    """A branch that is neither attention nor an Mlp."""

    def forward(self, x):
        return x + x


def test_branches_of_other_kinds(image, tmp_path):
    """A block may have one branch only, or others than those of the paper, and blocks may have other names."""
    model = CaiT(num_classes=2, img_size=(16, 24), patch_size=8, dim=16, heads=2, depth=2, layer_scale=0.1)
    model.blocks[1].mlp = Doubled()
    inside = look(model, image)
    assert [b.kind for b in inside.branches[:4]] == ["attention", "FFN", "attention", "branch"]
    assert inside.branches[3].ratio == pytest.approx(0.2, rel=0.5)  # 0.1 times the doubled norm of x
    fewer = replace(inside, branches=[b._replace(name=b.name.replace("blocks.0", "stem")) for b in inside.branches[1:]])
    page = Page(report(fewer, "photo.jpg", ""))
    bars = [have["aria-label"].rpartition(":")[0] for have in page.all(data_equation="eq-ratio", role="img")]
    want = ["2, attention", "C1, attention", "C2, attention", "stem, FFN", "C1, FFN", "C2, FFN", "2, branch"]
    assert bars == [f"Layer {name}" for name in want]
    assert "hidden" in page.all(aria_labelledby="h-graph")[0]  # there is no graph
    assert len(write_report(fewer, tmp_path / "r.html", "photo.jpg", "", png=True)) > 5


def test_signs_have_colours():
    """0 is white, whatever the minimum and the maximum are."""
    low, none, high = colourise(rescale_around_zero(np.array([-2.0, 0, 1])), DIVERGING).astype(int)
    assert low[2] > low[0] + 100 and high[0] > high[2] + 100 and none.tolist() == [248] * 3
    assert (colourise(rescale_around_zero(np.zeros(3)), DIVERGING) == 248).all()


def test_saliency_is_the_grey_image_times_the_map(inside):
    """Fig. D.2: the darkest colour where the attention is lowest."""
    flat = replace(inside, image=np.full_like(inside.image, 255))
    picture = np.asarray(saliency_picture(flat, 0)).astype(int)
    least = inside.class_attention[0].mean(axis=0).argmin()
    high, wide = picture.shape[0] // 2, picture.shape[1] // 3
    row, column = least // 3, least % 3
    corner = picture[row * high + high // 2, column * wide + wide // 2]
    assert np.abs(corner - (0, 34, 78)).max() < 12
    assert (picture[..., 0] - picture[..., 2]).max() > 150  # yellow where attention is highest
    dark = replace(inside, image=np.zeros_like(inside.image))
    assert (np.asarray(saliency_picture(dark, 0)) == (0, 34, 78)).all()


def test_pictures_and_numbers_beside_the_page(inside, model, tmp_path):
    written = write_report(inside, tmp_path / "r.html", "photo.jpg", block_graph(model), png=True, numbers=True)
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()} == {
        "r.html", "r.json", "r-image.png", "r-class-attention.png", "r-saliency-1.png", "r-saliency-2.png",
        "r-self-attention.png", "r-layer-scale.png", "r-residual-ratio.png", "r-block.svg",
    }  # fmt: skip
    numbers = json.loads((tmp_path / "r.json").read_text())
    np.testing.assert_allclose(numbers["class_attention"], inside.class_attention, rtol=1e-4)
    at = numbers["self_attention"]["patch"]
    patch = at["row"] * 3 + at["column"]
    np.testing.assert_allclose(
        np.reshape(numbers["self_attention"]["after"], (3, 2, 6)), inside.after[:, :, patch], rtol=1e-4
    )
    assert numbers["guesses"][0]["class"] == NAMES[inside.best[0]] and len(numbers["branches"]) == 10
    with Image.open(tmp_path / "r-image.png") as picture:
        assert picture.size == (336, 224)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Weights of a small model, and two images."""
    folder = tmp_path_factory.mktemp("files")
    small = CaiT(num_classes=3, img_size=16, patch_size=8, dim=16, heads=2, depth=1, layer_scale=0.1)
    minicait.save_weights(small, folder / "w.safetensors", ["ant", "bee", "<owl>"])
    for name in ("a", "b"):
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    (folder / "no.jpg").write_text("not an image")
    return folder


def explain(files, *arguments):
    return main(["explain", *map(str, arguments), "--weights", str(files / "w.safetensors")])


def test_the_command(files, tmp_path, capsys):
    assert explain(files, files / "a.png", "--out", tmp_path / "r.html") == 0
    assert re.search(r"a\.png: (ant|bee|<owl>) \d+\.\d%; .*r\.html, 0\.\d MB\n", capsys.readouterr().out)
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert explain(files, files / "a.png", files / "b.png", "--json", "--out", tmp_path / "s.html") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "r.html",
        "s-1.html",
        "s-1.json",
        "s-2.html",
        "s-2.json",
    ]
    assert "<title>b.png:" in (tmp_path / "s-2.html").read_text(encoding="utf-8")
    main(["predict", str(files / "b.png"), "--weights", str(files / "w.safetensors"), "--json", "--device", "cpu"])
    (predicted,) = json.loads(capsys.readouterr().out.split("\n", 2)[2])
    ours = json.loads((tmp_path / "s-2.json").read_text())["guesses"]
    assert [g["class"] for g in ours] == [g["class"] for g in predicted["guesses"]]
    assert ours[0]["probability"] == pytest.approx(predicted["guesses"][0]["probability"], abs=1e-5)


@pytest.mark.parametrize(
    ("image", "more", "says"),
    [
        ("no.jpg", [], "no.jpg cannot be read: it is not a JPEG, PNG, WebP, GIF, BMP or TIFF image"),
        ("none.jpg", [], "there is no image"),
        ("a.png", ["--weights", "nowhere"], "there is no weights file nowhere"),
        ("a.png", ["--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (
            "a.png",
            ["--weights", "checkpoint.safetensors"],
            "this is the checkpoint of a run; its weights are in weights/best.safetensors",
        ),
        ("a.png", ["--img-size", "0"], "--img-size must be from 1 to 4096, got 0"),
        ("a.png", ["--img-size", "-8"], "--img-size must be from 1 to 4096, got -8"),
        ("a.png", ["--out", "none/r.html"], "cannot be written: there is no folder none"),
        ("a.png", ["--out", "folder.html"], "cannot be written: it is a folder"),
        ("a.png", ["--out", "r.json"], "--out must be a file whose name ends in .html"),
        ("a.png", ["--out", "r.html", "--png"], "r-image.png cannot be read or written: Is a directory"),
    ],
)
def test_wrong_input_is_one_sentence(files, image, more, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_tensors(tmp_path / "checkpoint.safetensors", {"w": np.zeros(2)}, {"minicait_checkpoint": "{}"})
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "r-image.png").mkdir()
    arguments = ["explain", str(files / image), "--weights", str(files / "w.safetensors"), *more]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and said.startswith("minicait: ")


def test_the_largest_that_is_promised_to_be_small():
    """CaiT-XXS24 at 224 pixels stays under 3 MB, even for noise, the worst case for packing."""
    rng = np.random.default_rng(0)
    tiny = CaiT(num_classes=10, img_size=224, patch_size=16, dim=16, heads=4, depth=1)
    one = look(tiny, rng.integers(0, 256, (224, 224, 3), np.uint8))
    noise = rng.random((24, 4, 196, 196), np.float32)
    branches = [b._replace(name=f"blocks.{i}.{b.name[-4:].strip('.')}") for i in range(24) for b in one.branches[:2]]
    whole = replace(one, before=noise, after=noise, mixing=np.ones((24, 4, 5)), branches=branches + one.branches[2:])
    text = report(whole, "noise.png", block_graph(tiny))
    assert 2_000_000 < len(text.encode()) < 3_000_000
    assert json.loads(Page(text).scripts["numbers"])["layers"] == list(range(24))
