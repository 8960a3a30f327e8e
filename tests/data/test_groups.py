"""Coarse and fine labels: groups of classes, folders of folders, coloured shapes."""

import json

import numpy as np
import pytest
from PIL import Image

from minicait.data import (
    GROUPS,
    Grouped,
    ImageFolder,
    InMemory,
    Shapes,
    Source,
    find_groups,
    fine_labels,
    train_and_val,
)
from minicait.data.groups import unwrapped
from minicait.data.imagenet import imagenet_classes
from minicait.data.shapes import CLASSES, COLOURS


def picture(path, colour=(10, 20, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), colour).save(path)


@pytest.fixture
def nested(tmp_path):
    """coarse/fine/*.png, with an image outside of the fine folders."""
    for name in ("dog/poodle/a", "dog/poodle/b", "dog/setter/old/a", "cat/a", "cat/b", "cat/siamese/c"):
        picture(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


def test_groups_are_classes():
    shapes = Shapes(40, 16)
    grouped = Grouped(shapes, GROUPS["shapes"])
    assert grouped.classes == ["round", "angular"] and grouped.fine_classes == list(CLASSES) and len(grouped) == 40
    for i in range(40):
        image, label = shapes[i]
        same, group = grouped[i]
        np.testing.assert_array_equal(image, same)
        assert CLASSES[label] in GROUPS["shapes"][grouped.classes[group]]
        assert grouped.fine(i) == shapes.label(i) == label and grouped.label(i) == group
    names, fine = fine_labels(InMemory(grouped))
    assert names == list(CLASSES) and fine.tolist() == [shapes[i][1] for i in range(40)]
    assert unwrapped(InMemory(grouped)) is shapes


def test_groups_that_come_along():
    assert sorted(name for group in GROUPS["shapes"].values() for name in group) == sorted(CLASSES)
    assert all(name in imagenet_classes() for group in GROUPS["imagenette"].values() for name in group)
    for groups in GROUPS.values():
        names = [name for group in groups.values() for name in group]
        assert len(names) == len(set(names)) == 10 and min(map(len, groups.values())) > 1


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({"round": ["circle", "wheel"]}, "groups: wheel is not a class of these images, which have circle, ring"),
        ({"a": list(CLASSES), "b": ["ring"]}, "groups: the class ring is there twice"),
        ({"a": CLASSES[:4], "b": CLASSES[5:]}, "groups: the class bar is in none of the groups a, b"),
    ],
)
def test_groups_that_do_not_fit(groups, sentence):
    with pytest.raises(ValueError, match=sentence):
        Grouped(Shapes(4, 16), groups)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not a JSON file"),
        (b"\xff\xfe", "is not a JSON file"),
        (b"[" * 100_000, "is not a JSON file"),
        (b"{}", "must hold lists of classes"),
        (b"[]", "must hold lists of classes by the name of their group"),
        (b'{"a": "cat"}', "must hold lists of classes"),
        (b'{"a": []}', "must hold lists of classes"),
        (b'{"a": [3]}', "holds a class that is not a string"),
        (b" " * 1_000_001, "is too large"),
    ],
)
def test_files_that_hold_no_groups(content, sentence, tmp_path):
    (tmp_path / "g.json").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        find_groups(str(tmp_path / "g.json"))


def test_groups_that_are_not_there():
    with pytest.raises(
        ValueError, match=r"no groups cifar: expected cifar10, imagenette, shapes, colours, or a JSON file"
    ):
        find_groups("cifar")


def test_a_source_with_groups(tmp_path, nested):
    (tmp_path / "g.json").write_text(json.dumps({"pet": ["cat", "dog"]}))
    images = Source(str(nested), val_fraction=None, groups=str(tmp_path / "g.json")).open(16)
    assert images.train.classes == ["pet"] and fine_labels(images.train)[0] == ["cat", "dog"]
    plain = Source(str(nested), val_fraction=None).open(16)
    assert images.fingerprint != plain.fingerprint and images.fingerprint.startswith(plain.fingerprint)
    kept = Source(str(nested), val_fraction=None, groups=str(tmp_path / "g.json"), keep_side=16).open(16)
    assert kept.val[0][1] == 0 and fine_labels(kept.val)[1].tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match=r"groups colours are for shapes, .* not for"):
        Source(str(nested), groups="colours").open(16)


def test_folders_inside_a_class_are_fine_labels(nested):
    folder, _ = train_and_val(nested, None)
    assert isinstance(folder, ImageFolder) and folder.classes == ["cat", "dog"]
    names, fine = fine_labels(folder)
    assert names == ["cat", "cat/siamese", "dog/poodle", "dog/setter/old"] and fine.tolist() == [0, 0, 1, 2, 2, 3]
    part = folder.first(2)
    assert [part.fine_classes[part.fine(i)] for i in range(2)] == [names[fine[i]] for i in _places(folder, part)]


def _places(folder, part):
    paths = [path for path, _ in folder.samples]
    return [paths.index(path) for path, _ in part.samples]


def test_coloured_shapes():
    shapes = Shapes(200, 16, difficulty="easy", coloured=True)
    names, fine = fine_labels(shapes)
    assert len(names) == 40 and names[5] == "green ring" and len(set(fine)) > 35
    for i in range(40):
        image, mask, label = shapes.render(i)
        colour, form = names[fine[i]].split()
        assert CLASSES[label] == form and shapes.label(i) == label
        inside = np.median(image[mask], axis=0)
        nearest = min(COLOURS, key=lambda name: np.abs(inside - COLOURS[name]).sum())
        assert nearest == colour and np.abs(inside - COLOURS[colour]).max() < 40
    counts = np.bincount(fine % 4, minlength=4)
    assert counts.min() > 30


def test_shapes_without_named_colours_are_as_ever():
    """A sum over one image, from before there were any."""
    image, mask, label = Shapes(3, 32, seed=0).render(1)
    assert abs(int(image.sum()) - 441261) < 100 and (int(mask.sum()), label) == (138, 2)
    assert Shapes(3, 32).fine_classes == list(CLASSES) and Shapes(3, 32).fine(1) == label
