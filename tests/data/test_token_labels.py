"""Token labels: crops of label maps as in the reference, and labels that move with crop and flip."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicait.data import Augmentation, BadImageError, InMemory, Loader, Picture, train_and_val, training
from minicait.data.crops import shrink
from minicait.data.label_file import Description, image_names, open_label_file, write_label_file
from minicait.data.picture import normalise
from minicait.data.roi_align import roi_align
from minicait.data.token_labels import LabelMaps, dense, labels_of_crop
from tests.golden.recipe import FOLDER

ALL = Augmentation("resized", crop_scale=0.25, flip=0.5, colour_jitter=0.3, rand_augment=9, erasing=0.5)


@pytest.fixture(scope="module")
def golden():
    with np.load(FOLDER / "family/lvvit_token_labels.npz") as file:
        return dict(file)


# ---- as in the reference


def test_roi_align(golden):
    for bins in (1, 3, 4):
        for (number, *box), want in zip(golden["roi_boxes"], golden[f"roi_out_{bins}"], strict=True):
            values = golden["roi_input"][int(number)].transpose(1, 2, 0)
            got = roi_align(values, tuple(box), (bins, bins)).transpose(2, 0, 1)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def by_points(values, box, grid):
    """RoIAlign one point at a time."""
    (height, width), (left, top, right, bottom) = values.shape, box
    sides = max(bottom - top, 1.0) / grid[0], max(right - left, 1.0) / grid[1]
    counts = [int(np.ceil(side)) for side in sides]

    def at(y, x):
        if y < -1 or x < -1 or y > height or x > width:
            return 0.0
        y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
        i, j = int(y), int(x)
        k, m = min(i + 1, height - 1), min(j + 1, width - 1)
        upper = values[i, j] * (j + 1 - x) + values[i, m] * (x - j)
        lower = values[k, j] * (j + 1 - x) + values[k, m] * (x - j)
        return upper * (i + 1 - y) + lower * (y - i)

    result = np.zeros(grid)
    for r, c in np.ndindex(*grid):
        ys = [top + (r + (k + 0.5) / counts[0]) * sides[0] for k in range(counts[0])]
        xs = [left + (c + (k + 0.5) / counts[1]) * sides[1] for k in range(counts[1])]
        result[r, c] = np.mean([at(y, x) for y in ys for x in xs])
    return result


EDGES = st.floats(-4, 12)


@given(EDGES, EDGES, st.floats(-1, 15), st.floats(-1, 15), st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_any_box_and_any_grid(left, top, width, height, grid):
    values = np.random.default_rng(0).standard_normal((6, 9))
    box = (left, top, left + width, top + height)
    np.testing.assert_allclose(roi_align(values, box, grid), by_points(values, box, grid), atol=1e-12)


def stored(golden, i):
    """Logits, classes, box and flip of an image of the reference, which flips first and then crops."""
    logits, classes = golden["maps"][i].transpose(0, 2, 3, 1)
    (width, height), (top, left, high, wide) = golden["image_size"][i], golden["crop"][i]
    box, flipped = (left / width, top / height, (left + wide) / width, (top + high) / height), bool(golden["flip"][i])
    if flipped:
        box = (1 - box[2], box[1], 1 - box[0], box[3])
    return dense(logits, classes, 12), box, flipped


@pytest.mark.parametrize("i", range(5))
def test_targets(golden, i):
    """The reference's y (1 - s + s / K) + s / K sums to 1 + s / K; ours are smoothed once, later, and sum to 1."""
    scores, box, flipped = stored(golden, i)
    in_order = scores[:, ::-1] if flipped else scores
    np.testing.assert_array_equal(in_order.transpose(2, 0, 1), golden["dense_maps"][i])
    settings = json.loads(str(golden["config"]))
    s, classes = settings["smoothing"], settings["num_classes"]
    crop, tokens = (labels_of_crop(scores, box, flipped, grid).reshape(-1, classes) for grid in ((1, 1), (4, 4)))
    ours = np.concatenate([crop, tokens])
    np.testing.assert_allclose(ours.sum(-1), 1, rtol=1e-6)
    smoothed = ours * (1 - s + s / classes) + s / classes
    np.testing.assert_allclose(smoothed, golden["target_xy"][i].T[1:], rtol=0, atol=1e-5)
    np.testing.assert_allclose(smoothed.sum(-1), 1 + s / classes, rtol=1e-6)


def test_the_reference_s_own_order_of_the_box(golden):
    """The reference takes rows for columns, so that its labels are of another part of the image."""
    scores, (left, top, right, bottom), _ = stored(golden, 0)
    swapped = labels_of_crop(scores, (top, left, bottom, right), False, (4, 4)).reshape(-1, 12)
    theirs = golden["target_unsmoothed"][0].T[2:]
    np.testing.assert_allclose(swapped, theirs, atol=1e-5)
    right_way = labels_of_crop(scores, (left, top, right, bottom), False, (4, 4)).reshape(-1, 12)
    assert np.abs(right_way - theirs).max() > 0.9
    columns = np.eye(8, dtype=np.float32)[None].repeat(8, axis=0) * 50  # the class of a cell is its column
    half = (0.5, 0.0, 1.0, 1.0)
    assert (labels_of_crop(columns, half, False, (4, 4)).argmax(-1) == [4, 5, 6, 7]).all()
    assert (labels_of_crop(columns, half, True, (4, 4)).argmax(-1) == [7, 6, 5, 4]).all()
    transposed = labels_of_crop(columns, (0.0, 0.5, 1.0, 1.0), False, (4, 4)).argmax(-1)
    np.testing.assert_array_equal(transposed, golden["demo_right_half"])


# ---- labels move with crop and flip


def placed(width, height):
    """An image whose red and green are the column and the row, in 240 steps."""
    row, column = np.mgrid[:height, :width]
    steps = [(column + 0.5) / width * 240, (row + 0.5) / height * 240, 0 * row]
    return Image.fromarray(np.stack(steps, axis=-1).astype(np.uint8))


def shown(view, grid):
    """Column and row, as fractions of the image, that each token of a view shows."""
    pixels = view.pixels[:2] * np.array([0.229, 0.224])[:, None, None] + np.array([0.485, 0.456])[:, None, None]
    side = pixels.shape[-1] // grid
    return pixels.reshape(2, grid, side, grid, side).mean(axis=(2, 4)) * 255 / 240


@pytest.mark.parametrize("size", [(200, 120), (120, 200), (64, 64), (300, 900)])
@pytest.mark.parametrize("crop", ["none", "padded", "resized"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_the_box_is_what_the_pixels_show(tmp_path, size, crop, suffix):
    path, grid, flips = tmp_path / f"it.{suffix}", 4, set()
    placed(*size).save(path, quality=98, subsampling=0)
    how = training(Augmentation(crop, crop_scale=0.2, flip=0.5), 32, 0.9, token_labels=True)
    for seed in range(20):
        view = how.view(Picture(path), np.random.default_rng(seed))
        np.testing.assert_array_equal(view.pixels, how(Picture(path), np.random.default_rng(seed)))
        left, top, right, bottom = view.box
        middles = (np.arange(grid) + 0.5) / grid
        columns, rows = left + middles * (right - left), top + middles * (bottom - top)
        columns = columns[::-1] if view.flipped else columns
        inside = slice(1, -1) if crop == "padded" else slice(None)  # at the border it is black
        seen = shown(view, grid)[:, inside, inside]
        np.testing.assert_allclose(seen[0].mean(axis=0), columns[inside], atol=0.012)
        np.testing.assert_allclose(seen[1].mean(axis=1), rows[inside], atol=0.012)
        flips.add(view.flipped)
    assert flips == {False, True}


@pytest.mark.parametrize("crop", ["none", "resized"])
def test_labels_are_of_what_the_tokens_show(tmp_path, crop):
    """A map with a class for every column of cells, and one for every row: labels and pixels agree."""
    path, cells, grid = tmp_path / "it.png", 12, 4
    placed(400, 280).save(path)
    how = training(Augmentation(crop, crop_scale=0.2, flip=0.5), 64, token_labels=True)
    place = np.arange(cells)
    of_column = np.broadcast_to(np.eye(cells, dtype=np.float32) * 40, (cells, cells, cells))
    of_row = of_column.swapaxes(0, 1)
    for seed in range(20):
        view = how.view(Picture(path), np.random.default_rng(seed))
        for axis, scores in enumerate((of_column, of_row)):
            labels = labels_of_crop(scores, view.box, view.flipped, (grid, grid))
            centre = (labels * (place + 0.5) / cells).sum(-1)  # where the label says that the token is
            assert np.abs(centre - shown(view, grid)[axis]).max() < 0.5 / cells


def test_randaugment_moves_nothing_when_there_are_labels():
    """A picture of two halves: its border stays where it is, in all rows."""
    halves = np.zeros((32, 32, 3), np.uint8)
    halves[:, :16], halves[:, 16:] = (200, 90, 30), (40, 120, 220)

    def moved(view):
        """True if a half, less what sharpening reaches, is not all of one colour."""
        return any(np.ptp(part, axis=(1, 2)).max() > 1e-6 for part in (view[..., :14], view[..., 18:]))

    for labelled in (False, True):
        how = training(Augmentation(rand_augment=9), 32, token_labels=labelled)
        views = [how(Picture(halves), np.random.default_rng(seed)) for seed in range(150)]
        assert any(map(moved, views)) != labelled
        assert len({view.tobytes() for view in views}) > 50


def test_a_crop_that_labels_cannot_follow_is_refused():
    training(Augmentation("simple"), 32)
    sentence = "token labels cannot follow crop=simple; choose one of none, padded, resized"
    with pytest.raises(ValueError, match=sentence):
        training(Augmentation("simple"), 32, token_labels=True)


# ---- from a file to batches


@pytest.fixture
def photos(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            placed(60 + 3 * i, 48).rotate(7 * i).save(tmp_path / f"photos/{name}/{i}.png")
    return tmp_path / "photos"


def labelled(path, images, classes=None, seed=0, cells=(3, 4)):
    """A file of random label maps."""
    classes, rng = list(classes or images.classes), np.random.default_rng(seed)
    top = min(5, len(classes))
    shape = (len(images), *cells, top)
    numbers = rng.permuted(np.broadcast_to(np.arange(len(classes)), (*shape[:-1], len(classes))), axis=-1)[..., :top]
    about = Description(classes, "model.safetensors", "0" * 64, 64, None)
    logits = rng.standard_normal(shape).astype(np.float16)
    write_label_file(path, about, image_names(images), logits, numbers.astype(np.uint16))
    return open_label_file(path)


def everything(loader, epoch=0, start=0):
    return [{"images": batch.images, **batch.targets} for batch in loader.epoch(epoch, start)]


def assert_same(a, b):
    assert len(a) == len(b) > 0
    for left, right in zip(a, b, strict=True):
        assert left.keys() == right.keys() == {"images", "labels", "token_labels", "crop_labels"}
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


def test_batches_with_token_labels(photos, tmp_path):
    train, _ = train_and_val(photos)
    maps = LabelMaps(labelled(tmp_path / "l.safetensors", train), train, (4, 4))
    loaders = [
        Loader(train, 5, True, 3, training(ALL, 32, 1.0, True), 2, threads, label_maps=maps) for threads in (0, 1, 2, 5)
    ]
    whole = everything(loaders[0], 2)
    assert whole[0]["token_labels"].shape == (5, 16, 2) and whole[0]["crop_labels"].shape == (5, 2)
    assert whole[0]["token_labels"].dtype == np.float32
    for loader in loaders[1:]:
        assert_same(whole, everything(loader, 2))
    assert_same(whole[2:], everything(loaders[1], 2, start=2))
    np.testing.assert_allclose(whole[1]["token_labels"].sum(-1), 1, rtol=1e-6)
    assert np.ptp(whole[1]["token_labels"], axis=1).max() > 0.01


def test_each_image_has_its_own_map(photos, tmp_path):
    """By path, in whatever order and number the images come."""
    every, _ = train_and_val(photos, None)
    file = labelled(tmp_path / "l.safetensors", every)
    few = train_and_val(photos, 0.3)[0].first(7)
    for images in (few, InMemory(few, partial(shrink, side=40))):
        maps = LabelMaps(file, images, (3, 4))
        for index, (path, _) in enumerate(few.samples):
            got = maps(index, (0.0, 0.0, 1.0, 1.0), False)["token_labels"]
            (number,) = (i for i, sample in enumerate(every.samples) if sample[0] == path)
            scores = dense(*file.read(number), 2).reshape(-1, 2)
            want = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_label_maps_need_to_know_the_crop(photos, tmp_path):
    train, _ = train_and_val(photos)
    maps = LabelMaps(labelled(tmp_path / "l.safetensors", train), train, (4, 4))
    with pytest.raises(ValueError, match="label_maps need a transform that tells what it cuts out"):
        Loader(train, 4, transform=lambda picture, rng: normalise(np.asarray(picture.decode())), label_maps=maps)


def test_other_images_and_other_classes_are_refused(photos, tmp_path):
    train, val = train_and_val(photos)
    file = labelled(tmp_path / "l.safetensors", train)
    with pytest.raises(ValueError, match=r"^l.safetensors is for other images: it has no map of cat/\d+.png \(\d+ byt"):
        LabelMaps(file, val, (4, 4))
    path = train.samples[3][0]
    placed(30, 30).save(path)
    wanted = rf"no map of cat/{path.name} \({path.stat().st_size} bytes\)$"
    with pytest.raises(ValueError, match=wanted):
        LabelMaps(file, train, (4, 4))
    for classes, why in ((["cat", "cow"], "it has 'cow' where the data has 'dog'"), (["a"] * 3, "it has 3, the data")):
        file = labelled(tmp_path / "l.safetensors", train, classes)
        with pytest.raises(ValueError, match=f"l.safetensors is for other classes: {why}"):
            LabelMaps(file, train, (4, 4))


def test_an_image_without_a_map_counts_as_corrupt(photos, tmp_path):
    train, _ = train_and_val(photos)
    file = labelled(tmp_path / "l.safetensors", train)
    logits, classes = file.file.read("logits"), file.file.read("classes")
    logits[2] = np.nan
    write_label_file(tmp_path / "l.safetensors", file.description, file.images, logits, classes)
    maps = LabelMaps(open_label_file(tmp_path / "l.safetensors"), train, (4, 4))
    with pytest.raises(BadImageError, match="has no label map: it could not be read when maps were made"):
        list(Loader(train, 4, label_maps=maps, transform=training(ALL, 32, 1.0, True)))
    loader = Loader(train, 4, label_maps=maps, transform=training(ALL, 32, 1.0, True), skip_bad=True)
    assert sum(len(batch.images) for batch in loader) == len(train) - 1 and set(loader.bad) == {2}
