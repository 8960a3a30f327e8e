"""Hostile .npz files: archives, headers of arrays, and bombs."""

import io
import struct
import zlib

import numpy as np
import pytest

from minicait.files.weights import open_weights
from minicait.models.cait import CaiT
from tests.attack.bounded import refused, run
from tests.attack.pth_files import zip_file

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 5}


def npy(array) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), allow_pickle=True)
    return out.getvalue()


def header(text: str, version=(1, 0), length=None, values=bytes(24)) -> bytes:
    """A .npy file with any text as its header."""
    raw = text.encode("latin1")
    size = struct.pack("<H" if version == (1, 0) else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + raw + values


def described(descr="'<f4'", order="False", shape="(2, 3)", **more) -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n", **more)


def deflated(content: bytes) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    return squeeze.compress(content) + squeeze.flush()


def packed(array: bytes, **claims):
    raw = deflated(array)
    return {"content": raw, "method": 8, "crc": zlib.crc32(array), "size": len(array), "packed": len(raw)} | claims


GOOD = npy(np.arange(6, dtype=np.float32).reshape(2, 3))
DEFLATED = packed(GOOD)

ARRAYS = {  # content of x.npy, or its whole entry, or a function that makes one: why it is refused
    "version 3.0": (described(version=(3, 0)), "NumPy's header"),
    "version 9.9": (described(version=(9, 9)), "NumPy's header"),
    "no magic": (b"nothing of NumPy's at all", "NumPy's header"),
    "nothing": (b"", "NumPy's header"),
    "a header beyond the end": (described(version=(2, 0), length=2**32 - 1), "NumPy's header"),
    "a header of a megabyte": (header("{" + " " * 2**20, (2, 0)), "NumPy's header"),
    "deep brackets": (header("(" * 9000), "NumPy's header"),
    "deep signs": (header("-" * 9000 + "1"), "NumPy's header"),
    "deep signs, as a shape": (described(shape="(" + "-" * 9000 + "1,)"), "NumPy's header"),
    "a power": (described(shape="(9**9**9,)"), "NumPy's header"),
    "a size of a thousand digits": (described(shape=f"({'9' * 1000},)"), "NumPy's header"),
    "a size of 9,000 digits": (described(shape=f"({'9' * 9000},)"), "NumPy's header"),
    "a negative size": (described(shape="(-2, -3)"), "NumPy's header"),
    "a size of True": (described(shape="(True, 6)"), "NumPy's header"),
    "a list of sizes": (described(shape="[2, 3]"), "NumPy's header"),
    "a thousand sizes": (described(shape=f"({'1, ' * 1000})"), "NumPy's header"),
    "a shape larger than the entry": (described(shape="(2, 2)"), "shape that does not fit its size"),
    "a shape smaller than the entry": (described(shape="(2, 4)"), "shape that does not fit its size"),
    "a shape of exabytes": (described(shape="(2**60,)".replace("2**60", str(2**60))), "impossible shape"),
    "objects": (npy(np.array([{}, []], dtype=object)), "NumPy's header"),
    "objects by name": (described("'|O'"), "NumPy's header"),
    "complex numbers": (npy(np.zeros(2, complex)), "NumPy's header"),
    "text": (npy(np.array(["abc"])), "NumPy's header"),
    "dates": (npy(np.array(["2020-01-01"], "datetime64[D]")), "NumPy's header"),
    "records": (npy(np.zeros(2, [("a", "f4")])), "NumPy's header"),
    "a dtype with a shape": (described("('<f4', (1000000, 1000000))"), "not"),
    "a dtype of a gigabyte": (described("'|V1000000000'"), "NumPy's header"),
    "no dtype": (described("'nothing'"), "NumPy's header"),
    "keys of another kind": (header("{'a': 1}"), "NumPy's header"),
    "encrypted": ({"content": GOOD, "flags": 1}, "encrypted"),
    "LZMA": ({"content": GOOD, "method": 14}, "method 14"),
    "an unknown method": ({"content": GOOD, "method": 77}, "method 77"),
    "no deflate": (packed(GOOD, content=b"\xff" * 40, packed=40), "cannot be decompressed"),
    "a size of terabytes": (packed(GOOD, size=2**42), "expand to much more"),
    "more than it says": (lambda: packed(described(values=bytes(10**8)), size=len(described())), "checksum"),
    "overlapping entries": ({"content": GOOD, "packed": 10**6, "size": 10**6}, "overlap"),
}


@pytest.mark.parametrize(("entry", "because"), ARRAYS.values(), ids=ARRAYS)
def test_hostile_arrays(tmp_path, entry, because):
    entry = entry() if callable(entry) else {"content": entry} if isinstance(entry, bytes) else entry
    path = zip_file(tmp_path / "bad.npz", [{"name": "y.npy", "content": GOOD}, {"name": "x.npy", **entry}])
    refused("weights", "info", path, because=because)


@pytest.mark.parametrize(
    ("names", "because"),
    [(["x"], "x is not an array"), (["x.npy", "x.npy"], "same name"), (["x.npy/"], "is not an array"),
     (["a" * 60_000 + ".npy"], "characters, more than 200"), (["a" * 60_000], "is not an array")],
    ids=["no suffix", "duplicates", "a folder", "a long name", "a long name without suffix"],
)  # fmt: skip
def test_hostile_names(tmp_path, names, because):
    path = zip_file(tmp_path / "bad.npz", [{"name": name, "content": GOOD} for name in names])
    refused("weights", "info", path, because=because)


def test_arrays_that_are_right(tmp_path):
    entries = {
        "plain": {"content": GOOD}, "packed": DEFLATED, "fortran": {"content": npy(np.asfortranarray(np.ones((2, 3))))},
        "big-endian": {"content": npy(np.arange(3, dtype=">f4"))}, "version 2": {"content": described(version=(2, 0))},
        "scalar": {"content": npy(np.int8(3))}, "empty": {"content": npy(np.zeros((0, 3)))},
    }  # fmt: skip
    path = zip_file(tmp_path / "good.npz", [{"name": f"{name}.npy", **entry} for name, entry in entries.items()])
    file = open_weights(path)
    with np.load(path) as theirs:
        assert list(file.shapes) == list(theirs) == list(entries)
        for name in entries:
            np.testing.assert_array_equal(file.read(name), theirs[name])


def state():
    return CaiT(**SMALL).state_dict()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_array_is_noticed_when_it_is_read(tmp_path, save, dummy_image):
    save(tmp_path / "w.npz", **state())
    predict = ("predict", dummy_image, "--weights", tmp_path / "w.npz", "--device", "cpu")
    assert run(*predict).code == 0
    content = bytearray((tmp_path / "w.npz").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    (tmp_path / "w.npz").write_bytes(content)
    refused(*predict, because="w.npz is damaged")


def test_bad_deflate_behind_a_good_beginning(tmp_path):
    path = zip_file(tmp_path / "w.npz", [{"name": "x.npy", **packed(npy(np.random.default_rng(0).random(20_000)))}])
    content = bytearray(path.read_bytes())
    content[100_000:100_100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"w\.npz is damaged \((an entry cannot be decompressed|the size or the check)"
    ):
        open_weights(path).read("x")


def test_a_bomb_of_zeros_is_refused_but_a_small_model_of_zeros_is_not(tmp_path):
    np.savez_compressed(tmp_path / "zeros.npz", **{name: np.zeros_like(value) for name, value in state().items()})
    assert run("weights", "info", tmp_path / "zeros.npz").code == 0
    np.savez_compressed(tmp_path / "bomb.npz", **{f"a{i}": np.zeros(10**6, np.float32) for i in range(20)})
    assert (tmp_path / "bomb.npz").stat().st_size < 10**5
    refused("weights", "info", tmp_path / "bomb.npz", because="expand to much more than weights do")


@pytest.fixture
def dummy_image(tmp_path):
    from PIL import Image

    Image.new("RGB", (16, 16), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


def test_many_headers_that_are_slow_to_parse(tmp_path):
    """A Python literal of thousands of sizes, replaced by a later key, in each of thousands of arrays."""
    text = "{'shape': (" + "0," * 4700 + "), 'descr': '<f4', 'fortran_order': False, 'shape': (0,), }"
    entries = [{"name": f"{i}.npy", "content": header(text)} for i in range(2000)]
    refused("weights", "info", zip_file(tmp_path / "slow.npz", entries), because="NumPy's header")
