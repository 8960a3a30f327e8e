"""Parity of augmentation and evaluation with timm, if installed: the same random draws give the same pixels."""

import os
from collections import Counter
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageOps

from minicait.data.crops import centre_crop, colour_jitter, padded_crop, resized_crop_box, simple_crop
from minicait.data.folder import images_in
from minicait.data.picture import Picture
from minicait.data.randaugment import FILL, OPERATIONS, rand_augment
from minicait.data.transforms import evaluation
from tests.data.test_crops import photograph
from tests.data.test_erasing import erase
from tests.models.test_parity import timm, torch  # noqa: F401 (a fixture that prepares and imports timm)

pytestmark = pytest.mark.parity
SIZES = [(75, 50), (50, 75), (64, 64), (33, 120)]


def replayed(rng):
    """Python's `random`, but with our draws."""
    return SimpleNamespace(
        random=rng.random,
        uniform=rng.uniform,
        gauss=rng.normal,
        randint=lambda low, high: int(rng.integers(low, high + 1)),
    )


def timms_rand_augment():
    from timm.data import create_transform

    _, second, _ = create_transform(
        224, is_training=True, auto_augment="rand-m9-mstd0.5-inc1", interpolation="bicubic", separate=True
    )
    (augment,) = second.transforms
    return augment


def test_rand_augment_is_set_up_alike():
    augment = timms_rand_augment()
    short = [op.name.removesuffix("Increasing").removesuffix("Rel") for op in augment.ops]
    assert short == list(OPERATIONS) and augment.num_layers == 2 and augment.choice_weights is None
    for op in augment.ops:
        assert (op.prob, op.magnitude, op.magnitude_std, op.magnitude_max) == (0.5, 9, 0.5, None)
        assert op.kwargs == {"fillcolor": FILL, "resample": Image.Resampling.BICUBIC}


@pytest.fixture
def posterize_to_nothing(monkeypatch):
    """Pillow 13 refuses to keep 0 bits, and timm stops with an error. Until then the image became black."""
    posterize = ImageOps.posterize
    monkeypatch.setattr(
        ImageOps, "posterize", lambda image, bits: posterize(image, bits) if bits else Image.new("RGB", image.size)
    )


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("posterize_to_nothing")
def test_each_operation(name, monkeypatch):
    from timm.data import auto_augment

    theirs = copy(timms_rand_augment().ops[list(OPERATIONS).index(name)])
    theirs.prob, theirs.magnitude_std = 1.0, 0
    for negate in (False, True):
        monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value, negate=negate: -value if negate else value)
        for magnitude in (0, 3, 9, 10, *np.linspace(0, 10, 28)):
            theirs.magnitude = float(magnitude)
            for seed, size in enumerate(SIZES):
                image = photograph(*size, seed)
                np.testing.assert_array_equal(OPERATIONS[name](image, float(magnitude), negate), theirs(image))


@pytest.mark.usefixtures("posterize_to_nothing")
def test_rand_augment_with_the_same_draws(monkeypatch):
    from timm.data import auto_augment

    draws = SimpleNamespace()

    def choice(operations, count, **_):
        return [operations[i] for i in draws.rng.integers(len(operations), size=count)]

    def gauss(mean, deviation):
        """We always draw a direction with the magnitude, timm only for operations that have one."""
        magnitude, draws.negate = draws.rng.normal(mean, deviation), draws.rng.random() < 0.5
        return magnitude

    monkeypatch.setattr(auto_augment, "random", SimpleNamespace(random=lambda: draws.rng.random(), gauss=gauss))
    monkeypatch.setattr(auto_augment, "np", SimpleNamespace(random=SimpleNamespace(choice=choice)))
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: -value if draws.negate else value)
    theirs, changed = timms_rand_augment(), 0
    for seed in range(1000):
        draws.rng, image = np.random.default_rng(seed), photograph(*SIZES[seed % 4], seed)
        ours = rand_augment(image, np.random.default_rng(seed))
        np.testing.assert_array_equal(ours, theirs(image), err_msg=f"seed {seed}")
        changed += ours.tobytes() != image.tobytes()
    print(f"\nRandAugment: {seed + 1} images equal, {changed} of them changed")
    assert 650 < changed < 800  # three quarters of the draws apply an operation


@pytest.mark.parametrize("size", [*SIZES, (500, 375), (400, 30), (30, 400)])  # few boxes fit into the last two
def test_crops_with_the_same_draws(size, monkeypatch):
    from timm.data import transforms

    image = photograph(*size)
    theirs = transforms.RandomResizedCropAndInterpolation(32, interpolation="bicubic")
    for seed in range(300):
        rng = np.random.default_rng(seed)
        box = resized_crop_box(*size, rng)
        monkeypatch.setattr(transforms, "random", replayed(np.random.default_rng(seed)))
        top, left, height, width = theirs.get_params(image, theirs.scale, theirs.ratio)
        assert box == (left, top, left + width, top + height)
        assert transforms.random.random() == rng.random()  # both have drawn the same number of times
        if seed < 20:
            monkeypatch.setattr(transforms, "random", replayed(np.random.default_rng(seed)))
            np.testing.assert_array_equal(image.crop(box).resize((32, 32), Image.Resampling.BICUBIC), theirs(image))


def test_padded_crops_with_the_same_draws(monkeypatch):
    from torchvision.transforms import RandomCrop

    image = photograph(40, 30)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(torch, "randint", lambda low, high, size, rng=rng: torch.tensor(rng.integers(low, high)))
        want = RandomCrop((30, 40), padding=4)(image)
        np.testing.assert_array_equal(padded_crop(image, np.random.default_rng(seed), 4), want)


@pytest.mark.parametrize("size", SIZES)
def test_simple_crops_with_the_same_draws(size, monkeypatch):
    from torchvision.transforms import Compose, InterpolationMode, RandomCrop, Resize

    image = photograph(*size)
    crop = RandomCrop(32, padding=4, padding_mode="reflect")  # as DeiT III builds it
    theirs = Compose([Resize(32, interpolation=InterpolationMode.BICUBIC), crop])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(torch, "randint", lambda low, high, size, rng=rng: torch.tensor(rng.integers(low, high)))
        np.testing.assert_array_equal(simple_crop(image, np.random.default_rng(seed), 32), theirs(image))


@pytest.mark.parametrize("strength", [0.1, 0.4, 1.5])
def test_colour_jitter_with_the_same_draws(strength, monkeypatch):
    from torchvision.transforms import ColorJitter

    theirs = ColorJitter(strength, strength, strength)
    for seed in range(30):
        image, rng = photograph(75, 50, seed), np.random.default_rng(seed)

        def draw(*ranges, rng=rng):
            order = rng.permutation(3)
            return order, *(float(rng.uniform(*ends)) for ends in ranges[:3]), None

        monkeypatch.setattr(theirs, "get_params", draw)
        np.testing.assert_array_equal(colour_jitter(image, np.random.default_rng(seed), strength), theirs(image))


@pytest.mark.parametrize("size", [(32, 32), (75, 50), (4, 60), (60, 4)])  # many boxes do not fit into the last two
@pytest.mark.parametrize("probability", [0.25, 1.0])
def test_erasing_with_the_same_draws(size, probability, monkeypatch):
    from timm.data import random_erasing as reference

    theirs = reference.RandomErasing(probability, mode="pixel", device="cpu")
    erased = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(reference, "random", replayed(rng))
        monkeypatch.setattr(
            reference,
            "_get_pixels",
            lambda per_pixel, rand_color, shape, rng=rng, **_: torch.from_numpy(
                rng.standard_normal(shape, dtype=np.float32)
            ),
        )
        want, got = theirs(torch.zeros(3, *size)).numpy(), np.zeros((3, *size), np.float32)
        erase(got, np.random.default_rng(seed), probability)
        np.testing.assert_array_equal(got, want)
        erased += got.any()
    assert 0.4 * probability < erased / 300 <= 1.3 * probability


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("side", [32, 224])
@pytest.mark.parametrize("ratio", [1.0, 0.875])
def test_evaluation_of_jpeg_files(mode, side, ratio, tmp_path):
    from timm.data import create_transform

    settings = {"is_training": False, "interpolation": "bicubic", "crop_pct": ratio}
    pixels, values = create_transform(side, normalize=False, **settings), create_transform(side, **settings)
    for seed, size in enumerate([(75, 50), (50, 75), (333, 251), (500, 375), (375, 501), (256, 256), (31, 600)]):
        path = tmp_path / f"{seed}.jpg"
        photograph(*size, seed).convert(mode).save(path, quality=90)
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        ours = np.asarray(centre_crop(rgb, side, ratio))
        np.testing.assert_array_equal(ours.transpose(2, 0, 1), pixels(rgb).numpy(), err_msg=str(size))
        prepared = evaluation(side, ratio)(Picture(path), None)
        np.testing.assert_allclose(prepared, values(rgb).numpy(), rtol=0, atol=1e-6)


def test_evaluation_of_photographs():
    """All the files below MINICAIT_PHOTOS, as the reference reads them: opened, converted, nothing else."""
    from timm.data import create_transform

    if not (folder := os.environ.get("MINICAIT_PHOTOS")):
        pytest.skip("set MINICAIT_PHOTOS to a folder of photographs to compare them, too")
    pixels = create_transform(224, normalize=False, is_training=False, interpolation="bicubic", crop_pct=1.0)
    modes = Counter()
    for path in images_in(Path(folder)):
        with Image.open(path) as image:
            modes[image.mode] += 1
            theirs = pixels(image.convert("RGB")).numpy()
        np.testing.assert_array_equal(
            np.asarray(centre_crop(Picture(path).decode(), 224)).transpose(2, 0, 1), theirs, err_msg=str(path)
        )
    assert modes
    print(f"photographs that are the same, pixel for pixel: {dict(modes)}")
