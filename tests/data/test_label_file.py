"""Files of label maps: what is written is read again, damage is found, and a part survives."""

import json
import os
import re

import numpy as np
import pytest

from minicait.data import GROUPS, Grouped, ImageFolder, InMemory, Shapes
from minicait.data.label_file import KEY, Description, image_names, open_label_file, write_label_file
from minicait.data.label_part import LabelPart
from minicait.files import tensorfile
from minicait.files.tensorfile import open_tensors, write_tensors

ABOUT = Description([f"class {i}" for i in range(3000)], "model.safetensors", "ab" * 32, 224, 0.5)
NAMES = [f"folder/{i}.jpg ({i} bytes)".encode() for i in range(6)] + [b"folder/\xff\n.jpg (7 bytes)"]


def some_maps(cells=(2, 3)):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((len(NAMES), *cells, 5)).astype(np.float16)
    return logits, rng.integers(0, 3000, logits.shape).astype(np.uint16)


@pytest.fixture
def path(tmp_path):
    write_label_file(tmp_path / "maps.safetensors", ABOUT, NAMES, *some_maps())
    return tmp_path / "maps.safetensors"


@pytest.mark.parametrize("block", [1, 50, 1 << 24])
def test_what_is_written_is_read(path, block, monkeypatch):
    """In blocks of any size; classes beyond 2048, which float16 cannot hold, are exact."""
    before = path.read_bytes()
    monkeypatch.setattr(tensorfile, "BLOCK", block)
    file, (logits, classes) = open_label_file(path), some_maps()
    assert file.description == ABOUT and file.images == NAMES and file.cells == (2, 3)
    assert classes.max() > 2048
    for i in range(len(NAMES)):
        got = file.read(i)
        np.testing.assert_array_equal(got[0], logits[i])
        np.testing.assert_array_equal(got[1], classes[i])
    write_label_file(path, ABOUT, NAMES, logits, classes)
    assert path.read_bytes() == before
    assert open_label_file(path).hash == file.hash


def test_the_hash_is_of_everything(path, tmp_path):
    hashes = {open_label_file(path).hash}
    logits, classes = some_maps()
    other = Description(ABOUT.classes, "other", ABOUT.annotator_hash, 224, None)
    for i, content in enumerate(
        [(other, NAMES, logits, classes), (ABOUT, [*NAMES[:-1], b"x"], logits, classes),
         (ABOUT, NAMES, logits + np.float16(1), classes), (ABOUT, NAMES, logits, classes // 2)]
    ):  # fmt: skip
        write_label_file(tmp_path / f"{i}.safetensors", *content)
        hashes.add(open_label_file(tmp_path / f"{i}.safetensors").hash)
    assert len(hashes) == 5


def test_every_flipped_bit_is_found(path):
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for place in [*range(0, 400, 7), *range(8 + length, len(whole), 3)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"^maps.safetensors (is damaged|holds no label maps)"):
            open_label_file(path)
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match="is damaged"):
            open_label_file(path)


def rewritten(path, change, description=None):
    """A file with other tensors or another description, and a hash that fits."""
    file = open_tensors(path)
    tensors = {name: file.read(name) for name in file.entries} | change
    about = json.loads(file.metadata[KEY]) | (description or {})
    real = Description.__post_init__
    try:
        Description.__post_init__ = lambda self: None
        names = tensors.pop("images").tobytes().split(b"\0")
        write_label_file(path, Description(**about), names, tensors["logits"], tensors["classes"])
    finally:
        Description.__post_init__ = real


HOSTILE = {
    "a class too many": ({"classes": np.full((7, 2, 3, 5), 3000, np.uint16)}, {}, "it has classes beyond its 3,000"),
    "a name too few": ({"images": np.frombuffer(b"a\0b", np.uint8)}, {}, "it has 2 names of images for 7 maps"),
    "no maps": (dict.fromkeys(("logits", "classes"), np.zeros((0, 2, 3, 5))), {}, "maps of shape (0, 2, 3, 5)"),
    "no cells": (dict.fromkeys(("logits", "classes"), np.zeros((7, 0, 3, 5))), {}, "maps of shape (7, 0, 3, 5)"),
    "four of five": (dict.fromkeys(("logits", "classes"), np.zeros((7, 2, 3, 4))), {}, "do not fit 3000 classes"),
    "other shapes": ({"classes": np.zeros((7, 3, 2, 5), np.uint16)}, {}, "its tensors are not logits, classes and"),
    "a centre square": ({}, {"covers": "centre"}, "its maps cover 'centre', expected 'image'"),
    "too many classes": ({}, {"classes": ["a"] * 70000}, "there must be from 1 to 65,536 classes, not 70,000"),
    "no classes": ({}, {"classes": []}, "there must be from 1 to 65,536 classes, not 0"),
    "numbers as classes": ({}, {"classes": [1, 2]}, "classes must be a list"),
    "a long name": ({}, {"annotator": "x" * 501}, "a name has more than 500 characters"),
    "a window of two": ({}, {"window": 2.0}, "window must be at most 1, got 2.0"),
    "a window of NaN": ({}, {"window": float("nan")}, "window must be at least 0, got nan"),
    "no size": ({}, {"img_size": 0}, "img_size must be at least 1, got 0"),
}


@pytest.mark.parametrize(("change", "description", "because"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_whose_hash_is_right(path, change, description, because):
    kinds = {"logits": np.float16, "classes": np.uint16, "images": np.uint8}
    rewritten(path, {name: x.astype(kinds[name]) for name, x in change.items()}, description)
    with pytest.raises(ValueError, match=f"^maps.safetensors is damaged: .*{re.escape(because)}"):
        open_label_file(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "{", '{"classes": NaN}', "{}"])
def test_metadata_that_is_no_description(tmp_path, text):
    write_tensors(tmp_path / "it.safetensors", {"x": np.ones(1)}, {KEY: text})
    with pytest.raises(ValueError, match=r"^it.safetensors is damaged: "):
        open_label_file(tmp_path / "it.safetensors")


def test_files_that_are_something_else(tmp_path):
    with pytest.raises(ValueError, match="there is no file of label maps"):
        open_label_file(tmp_path / "gone")
    write_tensors(tmp_path / "it.safetensors", {"x": np.ones(1)}, {})
    with pytest.raises(ValueError, match=r"it.safetensors holds no label maps, as `minicait label-tokens` writes "):
        open_label_file(tmp_path / "it.safetensors")


def test_names_of_images(tmp_path):
    (tmp_path / "cat").mkdir()
    strange = os.fsdecode(b"cat/\xff 1.jpg")
    for name, size in (("cat/a.jpg", 3), (strange, 5)):
        (tmp_path / name).write_bytes(b"x" * size)
    folder = ImageFolder(tmp_path, [(tmp_path / "cat/a.jpg", 0), (tmp_path / strange, 0)], ["cat"])
    assert image_names(folder) == image_names(InMemory(folder)) == [b"cat/a.jpg (3 bytes)", b"cat/\xff 1.jpg (5 bytes)"]
    some, more = image_names(Shapes(3, 16, 5, "easy")), image_names(Shapes(4, 16, 5, "easy"))
    assert some == more[:3] and len(set(more)) == 4
    others = (3, 32, 5, "easy"), (3, 16, 6, "easy"), (3, 16, 5, "hard"), (3, 16, 5, "easy", True)
    for other in others:
        assert not set(image_names(Shapes(*other))) & set(more)
    assert image_names(InMemory(Grouped(Shapes(3, 16, 5, "easy"), GROUPS["shapes"]))) == some
    with pytest.raises(ValueError, match="images of a list have no names"):
        image_names([])


# ---- a part of a file


def begun(path, count, about=ABOUT, cells=(2, 3)):
    part, (logits, classes) = LabelPart(path, about, NAMES, cells), some_maps(cells=cells)
    start = part.keep(1)
    part.append(logits[start : start + count], classes[start : start + count])
    return part


def test_a_part_goes_on_where_it_was(path, tmp_path):
    whole, out = path.read_bytes(), tmp_path / "out.safetensors"
    begun(out, 2).close()
    begun(out, 4).close()
    begun(out, 1).finish()
    assert out.read_bytes() == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["maps.safetensors", "out.safetensors"]


@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_a_torn_or_damaged_record_is_made_again(path, tmp_path, multiple):
    whole, out = path.read_bytes(), tmp_path / "out.safetensors"
    begun(out, 5).close()
    half = out.with_name("out.safetensors.part")
    content, size = half.read_bytes(), (half.stat().st_size - 32) // 5
    head, records = content[:32], content[32:]
    for damage, left in ((records[: 4 * size + 9], 4), (records[: 3 * size + 7] + b"?" + records[3 * size + 8 :], 3),
                         (bytes(5 * size), 0), (records + records[-size:] * 9, 5), (b"", 0)):  # fmt: skip
        half.write_bytes(head + damage)
        part = LabelPart(out, ABOUT, NAMES, (2, 3))
        kept = part.keep(multiple)
        part.close()
        assert kept == left - left % multiple and half.stat().st_size == 32 + kept * size
    half.write_bytes(content[:9])  # killed when it had just begun
    begun(out, 5).close()
    begun(out, 2).finish()
    assert out.read_bytes() == whole


def test_a_part_of_something_else_is_refused(tmp_path):
    out = tmp_path / "out.safetensors"
    begun(out, 2).close()
    other = Description(ABOUT.classes, ABOUT.annotator, "cd" * 32, 224, 0.5)
    for settings in ((other, NAMES, (2, 3)), (ABOUT, NAMES[1:], (2, 3)), (ABOUT, NAMES, (3, 2))):
        with pytest.raises(ValueError, match="part was begun with other images, weights or options; remove it to"):
            LabelPart(out, *settings)
    begun(out, 5).finish()
    assert open_label_file(out).images == NAMES


def test_two_processes_do_not_write_to_one_part(tmp_path):
    pytest.importorskip("fcntl")
    first = begun(tmp_path / "out.safetensors", 2)
    with pytest.raises(ValueError, match="is in use by another process"):
        LabelPart(tmp_path / "out.safetensors", ABOUT, NAMES, (2, 3))
    first.close()
    begun(tmp_path / "out.safetensors", 5).finish()
