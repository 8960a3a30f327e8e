"""Hostile files of label maps, and the command that makes them, killed in its writes or sent elsewhere by links."""

import json
import signal

import numpy as np
import pytest

import minicait
from minicait.data import Shapes
from minicait.data.label_file import KEY, Description, image_names, write_label_file
from minicait.data.shapes import CLASSES
from minicait.files.tensorfile import open_tensors, write_tensors
from tests.attack.bounded import count, refused, run
from tests.models.small_models import SMALL_MODELS
from tests.train.runs import assert_same_run

RUN = ["train", "--device", "cpu", "--preset", "lvvit_mini", "--img-size", "16", "--patch-size", "4",
       "--train-images", "16", "--val-images", "4", "--batch-size", "8", "--epochs", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "lvvit.safetensors"
    minicait.save_weights(SMALL_MODELS["lvvit"](), path, CLASSES)
    return path


@pytest.fixture
def labels(tmp_path):
    """Label maps of sixteen shapes."""
    names = image_names(Shapes(16, 16, 0, "easy"))
    about = Description(list(CLASSES), "w.safetensors", "0" * 64, 16, None)
    shape = (16, 4, 4, 5)
    write_label_file(
        tmp_path / "maps.safetensors", about, names, np.zeros(shape, np.float16), np.zeros(shape, np.uint16)
    )
    return tmp_path / "maps.safetensors"


def changed(path, metadata=None, **tensors):
    """The same file with other metadata or tensors, and its old hash."""
    file = open_tensors(path)
    whole = {name: file.read(name) for name in file.entries} | tensors
    write_tensors(path, whole, file.metadata | (metadata or {}))


def described(path, **changes):
    about = json.loads(open_tensors(path).metadata[KEY]) | changes
    changed(path, {KEY: json.dumps(about)})


HOSTILE = {
    "another hash": (lambda p: changed(p, {"sha256": "x" * 10**6}), "its content does not fit its hash"),
    "another logit": (lambda p: changed(p, logits=np.ones((16, 4, 4, 5), np.float16)), "does not fit its hash"),
    "float32": (lambda p: changed(p, logits=np.zeros((16, 4, 4, 5), np.float32)), "its tensors are not logits"),
    "another tensor": (lambda p: changed(p, more=np.zeros(10**6, np.uint8)), "its tensors are not logits"),
    "no axes": (lambda p: changed(p, logits=np.zeros((), np.float16)), "its tensors are not logits"),
    "a million names": (lambda p: changed(p, images=np.zeros(10**6, np.uint8)), "1,000,001 names of images"),
    "a giant map": (
        lambda p: changed(p, **{n: np.zeros((1, 5000, 10, 5), t) for n, t in (("logits", "f2"), ("classes", "u2"))}),
        "maps of shape (1, 5000, 10, 5)",
    ),
    "a class for each letter": (lambda p: described(p, classes="abc"), "classes must be a list"),
    "a class of escapes": (lambda p: described(p, classes=["\x1b[31m" * 20] * 10), "does not fit its hash"),
    "a class of a million": (lambda p: described(p, classes=["x" * 10**6] * 2), "more than 500 characters"),
    "an unknown field": (lambda p: described(p, more=1), "Description has no field 'more'"),
    "brackets": (lambda p: changed(p, {KEY: "[" * 10**5}), "maps.safetensors is damaged"),
    "half": (lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]), "damaged or not a safetensors file"),
    "weights": (lambda p: minicait.save_weights(SMALL_MODELS["lvvit"](), p, CLASSES), "holds no label maps"),
    "nothing": (lambda p: p.write_bytes(b""), "damaged or not a safetensors file"),
}


@pytest.mark.parametrize(("damage", "because"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_label_maps(labels, tmp_path, damage, because):
    damage(labels)
    refused(*RUN, "--out", tmp_path / "runs", "--token-labels", labels, because=because)
    assert not (tmp_path / "runs").exists()


def test_names_that_a_terminal_would_obey(labels, tmp_path):
    """Of images and of classes."""
    about = Description([*CLASSES[:-1], "\x1b[31m\n"], "\x1b[2J", "0" * 64, 16, None)
    arrays = np.zeros((16, 4, 4, 5), np.float16), np.zeros((16, 4, 4, 5), np.uint16)
    names = image_names(Shapes(16, 16, 0, "easy"))
    write_label_file(labels, about, names, *arrays)
    refused(
        *RUN, "--out", tmp_path, "--token-labels", labels, because=r"it has '\x1b[31m\n' where the data has 'arrow'"
    )
    write_label_file(labels, Description(list(CLASSES), "\x1b[2J", "0" * 64, 16, None), names, *arrays)
    result = run(*RUN, "--out", tmp_path / "runs", "--token-labels", labels)
    assert result.code == 0 and "\x1b" not in result.out + result.err and r"by \x1b[2J" in result.out


def label(weights, out, *options, **more):
    given = ["--device", "cpu", "--weights", weights, "--train-images", 40, "--out", out, *options]
    return run("label-tokens", *given, **more)


@pytest.fixture(scope="module")
def whole(weights, tmp_path_factory):
    """The files that the command ends with, by their endings."""
    folder = tmp_path_factory.mktemp("whole")
    assert label(weights, folder / "maps.safetensors").code == 0
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def killed_and_continued(weights, whole, folder, step):
    """Kill the command at a step of the writes at its end, and run it again; False if it ended before that."""
    folder.mkdir()
    result = label(weights, folder / "maps.safetensors", fault=("kill_at_write", step))
    if result.code == 0:
        return False
    count("killed in a write", result)
    assert result.code == -signal.SIGKILL
    assert label(weights, folder / "maps.safetensors").code == 0
    left = {path.name for path in folder.iterdir() if not path.name.startswith(".minicait-")}  # goes after an hour
    assert left == set(whole) == {"maps.safetensors", "maps.png"}
    assert all((folder / name).read_bytes() == content for name, content in whole.items())
    return True


@pytest.mark.parametrize("step", [1, 5, 8])
def test_a_kill_in_a_write(weights, whole, tmp_path, step):
    assert killed_and_continued(weights, whole, tmp_path / "it", step)


@pytest.mark.slow
def test_kills_in_all_writes(weights, whole, tmp_path):
    step = 1
    while killed_and_continued(weights, whole, tmp_path / str(step), step):
        step += 1
    assert step > 10


def test_links_are_not_followed(weights, tmp_path):
    other = tmp_path / "precious"
    other.write_bytes(b"do not touch")
    (tmp_path / "maps.safetensors.part").symlink_to(other)
    (tmp_path / "maps.png").symlink_to(other)
    assert label(weights, tmp_path / "maps.safetensors").code == 0
    assert other.read_bytes() == b"do not touch" and not (tmp_path / "maps.png").is_symlink()


def test_a_part_from_somebody_else(weights, tmp_path):
    part = tmp_path / "maps.safetensors.part"
    for content in (b"x" * 32, b"\0" * 10**6, bytes(range(256)) * 100):
        part.write_bytes(content)
        given = ["--device", "cpu", "--weights", weights, "--train-images", 40, "--out", tmp_path / "maps.safetensors"]
        refused("label-tokens", *given, because="part was begun with other images, weights or options; remove it to")
        assert part.read_bytes() == content


@pytest.mark.parametrize("step", [12, 40])
def test_a_run_with_token_labels_that_is_killed_in_a_write(labels, tmp_path, step):
    given = [*RUN, "--epochs", "2", "--checkpoint-minutes", "0", "--set", "mix_token=true", "--set", "relabel=0.5",
             "--token-labels", labels]  # fmt: skip
    assert run(*given, "--out", tmp_path / "whole").code == 0
    folder = tmp_path / "killed/shapes-lvvit_mini-1"
    killed = run(*given, "--out", folder.parent, "--threads", "1", fault=("kill_at_write", step))
    count("killed in a write", killed)
    assert killed.code == -signal.SIGKILL
    assert run("train", "--device", "cpu", "--resume", folder, "--threads", "2").code == 0
    assert_same_run(folder, tmp_path / "whole" / folder.name)
