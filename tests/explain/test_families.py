"""A report shows what each model has, and nothing that it does not have."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import minicait
from minicait.data.picture import normalise
from minicait.data.shapes import Shapes
from minicait.explain import attention_sheet, block_graph, class_attention, look, report, write_report
from minicait.explain.attention import GAP, SIDE
from minicait.explain.charts import charts, sparsity_chart
from minicait.explain.colours import CATEGORIES, OTHER, rescale
from minicait.explain.maps import all_maps, patch_labels
from minicait.explain.packing import pack
from minicait.models import FAMILIES, create_model
from minicait.models.cait import CaiT
from minicait.models.maps import image_maps
from minicait.models.patchconvnet import PatchConvNet
from minicait.models.resmlp import ResMLP
from minicait.models.variants import Variant
from minicait.run.pictures import draw_attention
from minicait.train import attention_inside

from .test_report import NAMES, Page, unpack

CLASS_TOKEN, PATCH = "Where the class token looks", "Where a patch looks"
# by preset: sections of maps, what else there is beside the page, papers of the equations
SHOWN = {
    "cait_tiny_32": (
        [CLASS_TOKEN, PATCH],
        "class-attention saliency-1 saliency-2 self-attention layer-scale",
        ["Going"],
    ),
    "deit_mini_32": ([CLASS_TOKEN, PATCH], "class-attention saliency-6 self-attention", ["Going", "Training"]),
    "deit_mini_distilled_32": (
        [CLASS_TOKEN, "Where the distillation token looks", PATCH],
        "class-attention distillation saliency-6 self-attention",
        ["Going", "Training"],
    ),
    "deit3_mini_32": (
        [CLASS_TOKEN, PATCH],
        "class-attention saliency-6 self-attention layer-scale",
        ["Going", "Training"],
    ),
    "resmlp_mini_32": ([PATCH], "cross-patch cross-patch-rows sparsity layer-scale", ["ResMLP", "Going"]),
    "patchconvnet_mini_32": ([CLASS_TOKEN], "class-attention saliency-1 layer-scale", ["Augmenting", "Going"]),
    "patchconvnet_mini_multi_32": (
        ["Where the class tokens look"],
        "class-maps layer-scale",
        ["Augmenting", "Going"],
    ),
    "lvvit_mini_32": (
        ["What each patch shows", CLASS_TOKEN, PATCH],
        "patch-classes class-maps class-attention saliency-6 self-attention",
        ["All Tokens", "Going", "Training"],
    ),
}  # fmt: skip
CLASSES = [f"{NAMES[i % 2]} {i}" for i in range(10)]  # with markup, all of them
IMAGE, LABEL = Shapes(1, 32)[0]


def sharpened(model):
    """A new model, but with attention that is not nearly uniform."""
    for name, parameter in model.named_parameters():
        if name.endswith(("qkv.weight", "attn.q.weight", "attn.k.weight", "aux_head.weight", "cls_token")):
            parameter.data *= 12
    return model.eval()


@pytest.fixture(scope="module", params=SHOWN)
def shown(request):
    model = sharpened(create_model(request.param, 10, seed=3))
    return request.param, model, look(model, IMAGE, CLASSES)


def recorded(model, images):
    with minicait.record(model.eval()) as inside:
        outputs = model.outputs(images)
    return inside, outputs


def test_every_family_has_a_report(shown, tmp_path):
    """... with its sections, and with pictures and numbers beside the page."""
    name, model, inside = shown
    sections, pictures, papers = SHOWN[name]
    graph = block_graph(model)
    written = write_report(inside, tmp_path / "r.html", "a shape", graph, png=True, numbers=True)
    names = ["image", *pictures.split(), "residual-ratio"]
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()} == {
        "r.html", "r.json", "r-block.svg", *(f"r-{each}.png" for each in names)
    }  # fmt: skip
    text = written[0].read_text(encoding="utf-8")
    titles = re.findall(
        r"<h2 .*?>(.*?)</h2>", re.sub(r"<section [^>]* hidden>.*?</section>", "", text, flags=re.DOTALL)
    )
    rest = ["What each layer adds", "One block, as autograd records it", "The equations"]
    assert titles == ["Prediction", *sections, *rest]
    footer = re.search(r"those of (.*)</p></footer>", text, re.DOTALL)[1]
    assert sorted(re.findall(r"“([A-Z]\w+(?: Tokens)?)", footer)) == sorted(papers)
    assert "{{" not in text
    assert json.loads((tmp_path / "r.json").read_text())["guesses"][0]["class"] == CLASSES[inside.best[0]]
    assert "alert(1)</" not in text and '<b>"cat' not in text


def test_there_are_those_equations_that_the_page_needs(shown):
    name, model, inside = shown
    page = Page(report(inside, "a shape", block_graph(model)))
    ids = [have["id"] for _, have in page.tags if "id" in have]
    assert len(ids) == len(set(ids))
    used = {have["data-equation"] for _, have in page.tags if "data-equation" in have}
    used |= {have["href"][1:] for tag, have in page.tags if tag == "a"}
    equations = {id for id in ids if id.startswith("eq-")}
    stage = {"eq-5", "eq-9"} if any(maps.equation == "eq-8" for maps in all_maps(inside)) else set()
    assert used | stage == equations
    assert {have["aria-labelledby"] for _, have in page.tags if "aria-labelledby" in have} <= set(ids)
    assert {"eq-attention", "eq-before"} & equations == (
        {"eq-before"} if name.startswith("cait") else {"eq-attention"} if len(inside.before) else set()
    )


def test_numbers_of_the_scripts(shown):
    _, _, inside = shown
    page = Page(report(inside, "a shape", ""))
    numbers = json.loads(page.scripts["numbers"])
    for maps in all_maps(inside):
        values = np.reshape(numbers[maps.name.replace("-", "_")], maps.values.shape)
        np.testing.assert_allclose(values, maps.values, rtol=1e-4, atol=1e-12)
        drawn = page.all(data_kind="class", data_maps=maps.name.replace("-", "_"))
        assert len(drawn) == len(maps.layers) * (len(maps.columns) + maps.has_mean)
    assert numbers["heads"] == inside.between.shape[1]
    found = unpack(pack(inside.between), numbers["heads"], 64) if len(inside.between) else inside.between
    np.testing.assert_allclose(found, inside.between, atol=2e-3)


def test_the_class_token_looks_in_every_block():
    model = sharpened(create_model("deit_mini_distilled_32", 10))
    inside, (seen, _) = look(model, IMAGE), recorded(model, normalise(IMAGE)[None])
    assert inside.class_attention.shape == inside.distillation.shape == (6, 3, 8, 8) and not inside.own_stage
    for layer in range(6):
        whole = seen.attention[f"blocks.{layer}.attn"].before[0]  # (heads, 66, 66)
        np.testing.assert_array_equal(inside.class_attention[layer].reshape(3, 64), whole[:, 0, 2:])
        np.testing.assert_array_equal(inside.distillation[layer].reshape(3, 64), whole[:, 1, 2:])
        np.testing.assert_array_equal(inside.to_itself[layer], whole[:, 0, 0])
        np.testing.assert_array_equal(inside.before[layer], whole[:, 2:, 2:])
    assert not inside.heads_talk and inside.salient == [5]
    assert inside.start == inside.class_attention[5].mean(axis=0).argmax()
    maps, logits = class_attention(model, normalise(IMAGE)[None])
    np.testing.assert_array_equal(maps[0], inside.class_attention)
    assert logits.argmax() == inside.best[0]
    page = Page(report(inside, "a shape", ""))
    rows = [have for _, have in page.tags if have.get("class") == "layer"]
    assert [have["data-label"] for have in rows if "hidden" not in have] == ["6", "6"]  # the last layer of both tokens
    assert not page.all(data_kind="after") and len(page.all(data_kind="before")) == 1


def test_a_class_token_that_comes_late():
    sizes = {"num_classes": 3, "img_size": 16, "patch_size": 4, "dim": 16, "heads": 2, "depth": 3}
    inside = look(Variant(pooling="class_token", insert_at=1, **sizes), IMAGE[:16, :16])
    assert inside.class_layers == ["blocks.1.attn", "blocks.2.attn"] and inside.class_attention.shape == (2, 2, 4, 4)
    assert [maps.layers for maps in all_maps(inside)] == [["2", "3"]]
    assert inside.before.shape == (3, 2, 16, 16) and inside.heads_talk


def test_a_scale_that_few_patches_cannot_take_over():
    values = np.arange(100.0).reshape(10, 10)
    values[9, 9] = 1e6
    assert (rescale(values)[:9] < 1e-3).all()
    covered = rescale(values, 0.95)
    assert covered.max() == 1 and (covered >= 1).sum() == 5 and covered[4, 7] == pytest.approx(47 / 94.05)


def test_cross_patch_weights():
    model = create_model("resmlp_mini_32", 10)
    weight = model.blocks[2].attn.weight.data
    weight[...] = 0.01
    weight[0, 1], weight[5, 6] = -0.9, 0.3
    inside = look(model, IMAGE)
    np.testing.assert_array_equal(inside.cross_patch[2], weight)
    assert inside.cross_patch.shape == (6, 64, 64) and inside.between.shape == (6, 1, 64, 64)
    assert inside.sparsity["A (patches)"]["blocks.2.attn"] == pytest.approx(1 - 2 / 64**2)
    size = np.abs(model.blocks[1].mlp.fc2.weight.numpy())
    assert inside.sparsity["C (fc2)"]["blocks.1.mlp"] == pytest.approx((size < 0.05 * size.max()).mean())
    labels = [mark.text for mark in sparsity_chart(inside).marks if mark.kind == "bar"]
    assert f"Layer 3, A (patches): {1 - 2 / 64**2:.4g}" in labels and len(labels) == 3 * 6
    other = look(model, IMAGE[::-1])
    np.testing.assert_array_equal(other.cross_patch, inside.cross_patch)  # the page says: the same for every image
    page = Page(report(inside, "a shape", ""))
    assert page.all(data_kind="rows") and page.all(data_kind="before", data_signed="")
    unpacked = unpack(pack(inside.between), 1, 64)
    assert unpacked[2, 0, 0, 1] == pytest.approx(-0.9, abs=1e-3)


def test_a_class_mlp():
    model = ResMLP(num_classes=3, img_size=32, patch_size=4, dim=16, depth=1, class_mlp=True)
    inside = look(model, IMAGE)
    want = [block.attn.weight.numpy()[0, 1:].reshape(8, 8) for block in model.blocks_token_only]
    np.testing.assert_array_equal(inside.class_weights, want)
    (maps,) = all_maps(inside)
    assert maps.signed and maps.layers == ["C1", "C2"]
    assert "C1 and C2 are the class-MLP layers." in report(inside, "a shape", "")
    assert attention_inside(model, Shapes(4, 32)) is None  # the same for every image, so it does not look


def test_pooling_by_attention():
    model = sharpened(create_model("patchconvnet_mini_32", 10))
    inside, (seen, _) = look(model, IMAGE), recorded(model, normalise(IMAGE)[None])
    (whole,) = seen.class_attention.values()
    np.testing.assert_array_equal(inside.class_attention.reshape(-1), whole[0, 0, 0, 1:])
    (maps,) = all_maps(inside)
    assert (maps.text, maps.layers, maps.has_mean) == ("class-pooling", [""], False)  # the map itself
    assert [branch.kind for branch in inside.branches] == ["convolution"] * 8 + ["attention", "FFN"]
    assert "A block adds one residual branch to the main path, made of convolutions and scaled" in report(
        inside, "a shape", ""
    )


def test_a_map_for_each_class():
    model = sharpened(create_model("patchconvnet_mini_multi_32", 10))
    inside, (seen, outputs) = look(model, IMAGE, CLASSES), recorded(model, normalise(IMAGE)[None])
    (whole,) = seen.class_attention.values()  # (1, 1, 10, 64)
    best = np.argsort(-outputs.logits.numpy()[0])[:3]
    assert inside.best[:3] == best.tolist()
    np.testing.assert_array_equal(inside.class_maps.reshape(3, 64), whole[0, 0, best])
    np.testing.assert_allclose(inside.class_maps.sum(axis=(1, 2)), 1, rtol=1e-5)
    (maps,) = all_maps(inside)
    assert maps.columns == [f"{CLASSES[i]}, {inside.probabilities[i]:.1%}" for i in best]
    with pytest.raises(ValueError, match="PatchConvNet has no class token whose attention could be shown"):
        class_attention(model, normalise(IMAGE)[None])


def test_classes_of_patches():
    model = sharpened(create_model("lvvit_mini_32", 10))
    inside, (_, outputs) = look(model, IMAGE, CLASSES), recorded(model, normalise(IMAGE)[None])
    logits = outputs.tokens.numpy()[0]
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(inside.patch_classes, p, rtol=1e-4)
    np.testing.assert_allclose(inside.class_maps.reshape(3, 64), p[:, inside.best[:3]].T, rtol=1e-4)
    labels = patch_labels(inside)
    assert [labels.names[i] for i in labels.which] == [CLASSES[i] for i in p.argmax(axis=-1)]
    np.testing.assert_allclose(labels.probability, p.max(axis=-1), rtol=1e-4)
    assert sum(labels.patches) == 64 and labels.patches == sorted(labels.patches, reverse=True)


def test_rare_classes_of_patches_share_a_colour():
    inside = look(create_model("lvvit_mini_32", 10), IMAGE, CLASSES)
    many = np.zeros((64, 10), np.float32)
    many[np.arange(64), [0] * 30 + [1] * 20 + [2, 3, 4, 5, 6] * 2 + [7, 8, 9, 9]] = 0.5
    labels = patch_labels(replace(inside, patch_classes=many))
    assert labels.colours == [*CATEGORIES, *[OTHER] * 3]
    assert labels.legend[0] == (f"{CLASSES[0]}: 30 patches", CATEGORIES[0])
    assert labels.legend[-1] == ("3 other classes: 4 patches", OTHER) and len(labels.legend) == 8
    text = report(replace(inside, patch_classes=many), "a shape", "")
    assert "alert(1)</" not in text and len(Page(text).scripts) == 3  # names do not end the script that has them
    assert json.loads(Page(text).scripts["numbers"])["patch_classes"]["names"] == labels.names


@pytest.mark.parametrize(("name", "learned", "scale"), [
    ("deit_mini_32", False, 1), ("lvvit_mini_32", False, 0.5), ("deit3_mini_32", True, 0.1),
    ("resmlp_mini_32", True, 0.1),
])  # fmt: skip
def test_there_is_a_chart_of_layer_scale_if_it_is_learned(name, learned, scale):
    inside = look(create_model(name, 10), IMAGE)
    assert {branch.learned for branch in inside.branches} == {learned}
    assert [branch.scale for branch in inside.branches] == pytest.approx([scale] * 12)
    assert [chart.name for chart in charts(inside)] == ["layer-scale"] * learned + ["residual-ratio"]
    text = report(inside, "a shape", "")
    assert ("mean |λ|" in text) == ("scaled by LayerScale" in text) == learned
    assert bool(re.search("each multiplied by .* = 0.5", text)) == (scale == 0.5)


def test_a_single_learned_scale_is_learned():
    sizes = {"num_classes": 3, "img_size": 16, "patch_size": 4, "dim": 16, "heads": 2, "depth": 1}
    inside = look(Variant(residual="scalar", layer_scale=0.3, **sizes), IMAGE[:16, :16])
    assert all(branch.learned and branch.scale == pytest.approx(0.3) for branch in inside.branches)


def test_where_each_model_looks(shown):
    """One map per image, of what the model has; and the share of it on the object."""
    name, model, _ = shown
    shapes = Shapes(6, 32)
    rendered = [shapes.render(i) for i in range(6)]
    images = normalise(np.stack([image for image, _, _ in rendered]))
    covered = np.stack([mask for _, mask, _ in rendered]).reshape(6, 8, 4, 8, 4).mean(axis=(2, 4)).reshape(6, 64)
    seen, outputs = recorded(model, images)
    best = outputs.logits.numpy().argmax(-1)
    if name.startswith("resmlp"):
        assert image_maps(seen, outputs, model.config) == [] and attention_inside(model, shapes) is None
        assert attention_sheet(model, images, [0] * 6, CLASSES) is None
        return
    if "multi" in name:
        want = next(iter(seen.class_attention.values()))[np.arange(6), 0, best]
    elif seen.class_attention:
        want = next(iter(seen.class_attention.values()))[:, :, 0, 1:].mean(axis=1)
    else:
        want = seen.attention["blocks.5.attn"].before[:, :, 0, model.config.prefix :].mean(axis=1)
    maps = image_maps(seen, outputs, model.config)
    np.testing.assert_allclose(maps[0], want, rtol=1e-4, atol=1e-9)
    share = ((want * covered).sum(axis=1) / want.sum(axis=1)).mean()
    assert attention_inside(model, shapes, threads=2, micro_batch=2) == pytest.approx(share, rel=1e-4)
    assert len(maps) == (2 if name.startswith("cait") else 1)
    sheet = attention_sheet(model, images, [0] * 6, ["x"] * 10)
    assert sheet.width == (len(maps) + 1) * (SIDE + GAP) + GAP


def test_pictures_at_the_end_of_a_run(shown, tmp_path):
    name, model, _ = shown
    written = draw_attention(tmp_path, model, Shapes(40, 32), None)
    assert [path.name for path in written] == ["report-1.html", "report-2.html", "report-3.html"]
    assert (tmp_path / "attention.png").is_file() == (not name.startswith("resmlp"))


def test_a_long_caption_is_not_cut_off():
    model = create_model("deit_mini_32", 10)
    sheet = attention_sheet(model, normalise(np.stack([IMAGE] * 2)), [0, 1], ["a very long name of a class " * 3] * 10)
    right = np.asarray(sheet)[: GAP + 18, -GAP:]
    assert sheet.width > 2 * (SIDE + GAP) + GAP and (right == 255).all()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_graph_of_a_block(family):
    """... of the first block, or without one of the first class block."""
    name = next(name for name in family.presets if "mini" in name or "tiny_32" in name)
    model = create_model(name, 10)
    graph = block_graph(model)
    tokens = model.config.patches + model.config.prefix
    assert f"(1, {tokens}, {model.config.dim})" in graph and graph.count("<rect") > 10


@pytest.mark.parametrize("model", [
    CaiT(num_classes=3, img_size=32, patch_size=8, dim=16, heads=2, depth=0),
    ResMLP(num_classes=3, img_size=32, patch_size=8, dim=16, depth=0, class_mlp=True),
    ResMLP(num_classes=3, img_size=32, patch_size=8, dim=16, depth=0),
    PatchConvNet(num_classes=3, img_size=32, patch_size=8, dim=16, depth=0),
    PatchConvNet(num_classes=3, img_size=32, patch_size=8, dim=16, depth=0, multi_class=True),
])  # fmt: skip
def test_models_without_blocks(model, tmp_path):
    inside, graph = look(model, IMAGE), block_graph(model)
    assert len(write_report(inside, tmp_path / "r.html", "a shape", graph, png=True, numbers=True)) > 3
    assert bool(graph) == (len(inside.branches) > 0)
