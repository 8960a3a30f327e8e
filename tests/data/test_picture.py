"""Files of every format become upright RGB images; errors for damaged ones name their path."""

import io

import numpy as np
import pytest
from PIL import Image

from minicait.data import picture
from minicait.data.picture import MEAN, STD, BadImageError, Picture, normalise
from tests.data.test_crops import photograph


@pytest.fixture
def photo():
    return photograph(64, 48)


def close(image, want, tolerance):
    """True if the mean difference per channel, out of 255, is below the tolerance."""
    assert image.mode == "RGB" and image.size == want.size
    return np.abs(np.asarray(image, float) - np.asarray(want, float)).mean() < tolerance


@pytest.mark.parametrize(
    ("ending", "mode", "tolerance"),
    [("jpg", "RGB", 7), ("jpg", "CMYK", 15), ("png", "RGB", 0.1), ("webp", "RGB", 6), ("png", "P", 30),
     ("gif", "P", 30), ("bmp", "RGB", 0.1), ("tiff", "CMYK", 2), ("png", "RGBA", 0.1)],
)  # fmt: skip
def test_kinds_of_files(tmp_path, photo, ending, mode, tolerance):
    path = tmp_path / f"image.{ending}"
    photo.convert(mode).save(path)
    picture = Picture(path)
    assert picture.size == (64, 48)
    assert close(picture.decode(), photo, tolerance)


@pytest.mark.parametrize(("ending", "mode"), [("jpg", "L"), ("png", "L"), ("png", "1"), ("png", "LA")])
def test_grey_files(tmp_path, photo, ending, mode):
    path = tmp_path / f"image.{ending}"
    photo.convert(mode).save(path)
    pixels = np.asarray(Picture(path).decode())
    assert pixels.shape == (48, 64, 3) and (pixels[..., 0] == pixels[..., 2]).all() and pixels.std() > 10


def test_sixteen_bits_are_scaled_not_cut_off(tmp_path):
    values = np.linspace(0, 65535, 64 * 48).reshape(48, 64).astype(np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    pixels = np.asarray(Picture(tmp_path / "deep.png").decode())
    assert np.abs(pixels[..., 0] - values / 257).max() <= 0.5 + 1e-6
    assert (pixels == 255).mean() < 0.01


def test_whole_numbers_of_other_ranges(tmp_path):
    small = np.arange(256, dtype=np.int32).reshape(16, 16)
    Image.fromarray(small).save(tmp_path / "small.tiff")
    np.testing.assert_array_equal(np.asarray(Picture(tmp_path / "small.tiff").decode())[..., 0], small)
    Image.fromarray(small * 1000).save(tmp_path / "large.tiff")
    Image.fromarray(small.astype(np.float32)).save(tmp_path / "float.tiff")
    for name in ("large", "float"):
        with pytest.raises(BadImageError, match="of unknown range"):
            Picture(tmp_path / f"{name}.tiff").decode()


def test_what_is_transparent_is_white(tmp_path):
    clear = Image.new("RGBA", (8, 8), (200, 0, 0, 0))
    clear.paste((0, 0, 200, 255), (0, 0, 4, 8))
    clear.save(tmp_path / "a.png")
    pixels = np.asarray(Picture(tmp_path / "a.png").decode())
    assert (pixels[:, :4] == (0, 0, 200)).all() and (pixels[:, 4:] == 255).all()
    indexed = Image.new("P", (8, 8), 1)
    indexed.putpalette([0, 0, 0, 9, 9, 9])
    indexed.save(tmp_path / "b.png", transparency=1)
    assert (np.asarray(Picture(tmp_path / "b.png").decode()) == 255).all()


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "I", "clear P", "clear L"])
def test_large_images_are_converted_in_parts(mode, photo, monkeypatch):
    image = photo.convert(mode.rpartition(" ")[2]) if mode != "I;16" else photo.convert("I").convert("I;16")
    if mode in ("LA", "RGBA"):
        image.putalpha(photo.convert("L"))
    if mode.startswith("clear"):
        image.info["transparency"] = bytes(range(256)) if mode == "clear P" else 100
    whole = np.asarray(picture._rgb(image))
    monkeypatch.setattr(picture, "TILE", 10)
    np.testing.assert_array_equal(picture._rgb(image), whole)
    assert whole.shape == (48, 64, 3) and (whole.std() > 10 or mode == "I;16")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(tmp_path, photo, orientation):
    """A camera stores pixels as its sensor saw them, and the rotation in EXIF."""
    undo = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90",
            7: "TRANSVERSE", 8: "ROTATE_270"}  # fmt: skip
    seen = photo if orientation == 1 else photo.transpose(Image.Transpose[undo[orientation]])
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("phone.jpg", "phone.png", "phone.webp", "phone.tiff"):
        seen.save(tmp_path / name, exif=exif, quality=95)
        picture = Picture(tmp_path / name)
        assert picture.size == (64, 48), name  # of a JPEG, known before it is decoded
        assert close(picture.decode(), photo, 7)


def test_a_jpeg_is_decoded_no_finer_than_needed(tmp_path):
    photograph(400, 300).save(tmp_path / "large.jpg")
    for shrink, size in ((1, (400, 300)), (1.9, (400, 300)), (2, (200, 150)), (3.5, (200, 150)), (4, (100, 75)),
                         (100, (50, 38))):  # fmt: skip
        assert Picture(tmp_path / "large.jpg").decode(shrink).size == size
    photograph(400, 300).save(tmp_path / "large.png")
    assert Picture(tmp_path / "large.png").decode(4).size == (400, 300)


def jpeg(image):
    buffer = io.BytesIO()
    image.save(buffer, "jpeg")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"this is no image", "it is not a JPEG, PNG, WebP, GIF, BMP or TIFF image"),
        (jpeg(photograph(64, 48))[:700], "truncated"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cannot be read"),
    ],
)
def test_damaged_files(tmp_path, content, reason):
    path = tmp_path / "broken.jpg"
    path.write_bytes(content)
    with pytest.raises(BadImageError, match=reason) as error:
        Picture(path).decode()
    assert str(error.value).startswith(f"{path} cannot be read: ") and "\n" not in str(error.value)


def test_a_file_that_is_not_there():
    with pytest.raises(BadImageError, match=r"nowhere\.png cannot be read"):
        Picture("nowhere.png")


def test_pixels_become_numbers():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    got = normalise(pixels)
    want = np.moveaxis((pixels / 255 - np.array(MEAN)) / np.array(STD), -1, 1)
    assert got.dtype == np.float32 and got.shape == (2, 3, 5, 4)
    np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_allclose(normalise(pixels, (0, 0, 0), (1, 1, 1)), np.moveaxis(pixels, -1, 1) / 255, atol=1e-6)


def test_a_damaged_note_about_the_image_is_no_damage(tmp_path):
    good = jpeg(photograph(64, 48))
    exif = b"Exif\0\0 this is no TIFF header"
    path = tmp_path / "odd.jpg"
    path.write_bytes(good[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + good[2:])
    np.testing.assert_array_equal(np.asarray(Picture(path).decode()), np.asarray(Image.open(io.BytesIO(good))))


def test_too_little_memory_is_not_a_bad_image(tmp_path, monkeypatch):
    path = tmp_path / "good.jpg"
    path.write_bytes(jpeg(photograph(64, 48)))
    picture = Picture(path)
    monkeypatch.setattr("minicait.data.picture._rgb", lambda image: exec("raise MemoryError"))
    with pytest.raises(MemoryError):
        picture.decode()
