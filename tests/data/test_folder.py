"""Image folders: classes, the split into training and validation, and errors."""

import sys

import pytest
from PIL import Image

from minicait.cli import main
from minicait.cli.options import class_list
from minicait.data import Source, train_and_val


def fill(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        Image.new("RGB", (8 + i % 3, 8), (i * 5 % 256, 0, 0)).save(folder / name)


def names(folder):
    return [path.relative_to(folder.root).as_posix() for path, _ in folder.samples]


@pytest.mark.parametrize("validation", ["val", "valid", "validation", "test"])
def test_train_and_val(tmp_path, validation):
    for part in ("train", validation):
        fill(tmp_path / part / "dog", f"{part}1.jpg", "2.JPEG")
        fill(tmp_path / part / "cat", "a.png", ".hidden.png")
    (tmp_path / "train/cat/notes.txt").write_text("no image")
    fill(tmp_path / "train/cat/more", "deep.webp")
    train, val = train_and_val(tmp_path)
    assert names(train) == ["cat/a.png", "cat/more/deep.webp", "dog/2.JPEG", "dog/train1.jpg"]
    assert len(val) == 3 and train.classes == val.classes == ["cat", "dog"]
    assert [train[i][1] for i in range(4)] == [0, 0, 1, 1] and train[0][0].size == (8, 8)


@pytest.mark.parametrize("below", ["", "train"])
def test_one_folder_is_split_by_names(tmp_path, below):
    for name, count in (("cat", 20), ("dog", 3)):
        fill(tmp_path / "photos" / below / name, *(f"{i}.png" for i in range(count)))
    train, val = train_and_val(tmp_path / "photos", 0.2)
    assert [sum(label == i for _, label in val.samples) for i in (0, 1)] == [4, 1]  # a fifth of every class
    assert not set(names(train)) & set(names(val)) and len(train) + len(val) == 23
    assert names(train_and_val(tmp_path / "photos", 0.2)[1]) == names(val)  # deterministic
    fill(tmp_path / "photos" / below / "cat", "new.png")
    assert len(set(names(train_and_val(tmp_path / "photos", 0.2)[1])) & set(names(val))) >= len(val) - 1


def test_classes_of_imagenette_have_names(tmp_path):
    for part in ("train", "val"):
        fill(tmp_path / part / "n03888257", "a.png")
        fill(tmp_path / part / "n01440764", "a.png")
    assert train_and_val(tmp_path)[0].classes == ["tench", "parachute"]


def test_some_of_the_classes(tmp_path, capsys):
    for part in ("train", "val"):
        for name in ("n03888257", "n01440764", "n02102040", "barn"):
            fill(tmp_path / part / name, "a.png")
    fill(tmp_path / "val" / "only-here", "a.png")
    train, val = train_and_val(tmp_path, classes=["Parachute", "n01440764"])
    assert train.classes == val.classes == ["tench", "parachute"] and len(train) == len(val) == 2
    (tmp_path / "list.txt").write_text("barn\n\n English springer \n")
    for given in ("barn,English springer", str(tmp_path / "list.txt")):
        source = Source(str(tmp_path), classes=class_list(given))
        assert source.open(8).train.classes == ["barn", "English springer"] and "2 classes of" in source.open(8).name
    (tmp_path / "empty.txt").write_text("\n\n")
    wrong = {
        "parashute,barn": "did you mean parachute?",
        "english springr,barn": "did you mean English springer?",
        "barn": "--classes must name at least 2 classes, got only barn",
        "n01440764,tench": "--classes must name at least 2 classes, got only tench",
        "x,y": "train has no class x; it has barn, tench, English springer, parachute",
        "barn,barn": "--classes names barn twice",
        ",": "--classes names no class",
        str(tmp_path / "empty.txt"): "--classes names no class",
        "nofile.txt": f"there is no file nofile.txt, and {tmp_path / 'train'} has no such class",
    }
    for given, sentence in wrong.items():
        assert main(["train", "--data", str(tmp_path), "--classes", given]) == 2
        assert sentence in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert main(["train", "--classes", "circle,ring"]) == 2 and "not from shapes" in capsys.readouterr().err


def test_fewer_images_and_fingerprints(tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / name, *(f"{i}.png" for i in range(40)))
    train, _ = train_and_val(tmp_path)
    few = train.first(20)
    assert len(few) == 20 and len({label for _, label in few.samples}) == 2 and train.first(None) is train
    assert few.samples == sorted(few.samples) and set(few.samples) < set(train.samples)
    before = train.fingerprint()
    assert train_and_val(tmp_path)[0].fingerprint() == before != few.fingerprint()
    (train.samples[0][0]).write_bytes(b"shorter")
    assert train_and_val(tmp_path)[0].fingerprint() != before


def test_bad_folders(tmp_path):
    def refused(sentence, folder=tmp_path / "x", fraction=0.1):
        with pytest.raises(ValueError, match=sentence):
            train_and_val(folder, fraction)

    refused("there is no folder .*x")
    (tmp_path / "x").mkdir()
    refused("must contain a folder of images for each class, at least 2, but has none")
    fill(tmp_path / "x/cat", "a.png", "b.png")
    refused("must contain a folder of images for each class, at least 2, but has only cat")
    (tmp_path / "x/dog").mkdir()
    refused(r"dog has no images \(\.jpg")
    fill(tmp_path / "x/dog", "a.png")
    refused("dog has one image; splitting a class needs at least two")
    fill(tmp_path / "x/dog", "b.png")
    refused("val_fraction must be between 0 and 1, got 1.5", fraction=1.5)
    assert [len(part) for part in train_and_val(tmp_path / "x")] == [2, 2]
    fill(tmp_path / "y/train/cat", "a.png")
    fill(tmp_path / "y/train/dog", "a.png")
    fill(tmp_path / "y/val/owl", "a.png")
    fill(tmp_path / "y/val/cat", "a.png")
    refused("val has classes that are missing from .*train: owl", tmp_path / "y")


def test_a_class_may_be_called_train(tmp_path):
    for name in ("car", "train"):
        fill(tmp_path / name, "a.png", "b.png")
    assert train_and_val(tmp_path)[0].classes == ["car", "train"]
    fill(tmp_path / "val/car", "a.png", "b.png")
    (tmp_path / "val/bus").mkdir()
    with pytest.raises(ValueError, match="bus has no images"):
        train_and_val(tmp_path / "val")


def test_sources(tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / "my photos" / name, *(f"{i}.png" for i in range(10)))
    source = Source(str(tmp_path / "my photos"), train_images=5, val_images=1, val_fraction=0.3, keep_side=6)
    assert source.name == "my-photos"
    train, val, _, print_ = source.open(4)
    assert len(train) == 5 and len(val) == 1 and train[0][0].shape[0] == 6  # pixels, shrunk
    assert print_ == source.open(4).fingerprint != Source(str(tmp_path / "my photos")).open(32).fingerprint
    shapes = Source(train_images=3).open(16, seed=2)
    assert len(shapes.train) == 3 and len(shapes.val) == 500 and shapes.train[0][0].shape == (16, 16, 3)
    with pytest.raises(ValueError, match=r"^train_images must be at least 1, got 0$"):
        Source(train_images=0)


def test_a_folder_that_is_not_split(tmp_path):
    fill(tmp_path / "cat", "a.png", "b.png", ".hidden.png")
    fill(tmp_path / "cat/.ipynb_checkpoints", "a.png")
    for folder in train_and_val(tmp_path, None):
        assert [path.name for path, _ in folder.samples] == ["a.png", "b.png"] and folder.classes == ["cat"]


def test_validation_may_have_some_of_the_classes_only(tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / "train" / name, "a.png")
    fill(tmp_path / "val/dog", "b.png")
    assert [label for _, label in train_and_val(tmp_path)[1].samples] == [1]


def test_few_images_are_of_all_classes(tmp_path):
    for i in range(9):
        fill(tmp_path / f"class {i}", *(f"{j}.png" for j in range(30 if i else 3)))
    few = train_and_val(tmp_path, None)[0].first(18)
    assert sorted(label for _, label in few.samples) == sorted([*range(9)] * 2)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
def test_names_that_are_no_text(tmp_path):
    for name in ("cat", "dog"):
        fill(tmp_path / name, "caf\udce9.png", "b.png")
    train, val = train_and_val(tmp_path, 0.5)
    assert len(train) == len(val) == 2 and train.fingerprint() != val.fingerprint()
