"""Reading .pth files, from PyTorch and from attackers."""

import os
import pickle
import zipfile

import numpy as np
import pytest

import minicait
from minicait.files.pth import UnsafeFileError, read_pth, read_tensor, tensors_in
from minicait.files.weights import open_weights
from minicait.models.cait import CaiT
from tests.golden.recipe import FOLDER

SMALL = {"img_size": 16, "patch_size": 4, "dim": 12, "heads": 3, "depth": 2, "num_classes": 5, "layer_scale": 0.5}
PTH = FOLDER / "deep.pth"  # written by PyTorch


def test_odd_tensors_of_pytorch():
    odd = {name: read_tensor(PTH, tensor) for name, tensor in tensors_in(read_pth(PTH), ("odd",)).items()}
    np.testing.assert_array_equal(odd["transposed"], np.arange(6.0).reshape(2, 3).T)
    assert odd["slice"].tolist() == [3, 5] and odd["slice"].dtype == np.int64
    assert odd["half"].dtype == np.float16 and odd["half"].tolist() == odd["bfloat16"].tolist() == [1.5, -2.0]
    assert odd["empty"].shape == (0, 3) and odd["scalar"].shape == () and odd["scalar"] == 7
    assert odd["parameter"].tolist() == [1, 1]


class Payload:
    """Unpickled in the usual way, this creates a file."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "named"),
    [(os.system, r"posix\.system|nt\.system"), (eval, r"builtins\.eval")],
)
def test_a_malicious_file_is_refused_and_does_not_run(tmp_path, function, named):
    proof = tmp_path / "it ran"
    argument = f"touch '{proof}'" if function is os.system else f"open({str(proof)!r}, 'w').close()"
    payload = Payload(function, argument)
    path = tmp_path / "evil.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps({"model": {"cls_token": payload}}))
    with pytest.raises(UnsafeFileError, match=rf"evil.pth is refused: it asks for ({named}), but only tensors"):
        minicait.load_weights(CaiT(**SMALL), path)
    assert not proof.exists()
    pickle.loads(pickle.dumps(payload))  # the same bytes, read in the usual way
    assert proof.exists(), "the payload is harmless, so this test shows nothing"


def test_a_reference_to_something_else_than_a_storage_is_refused(tmp_path):
    class Sneaky(pickle.Pickler):
        def persistent_id(self, obj):
            return ("module", "os", "system") if obj == "here" else None

    path = tmp_path / "sneaky.pth"
    with zipfile.ZipFile(path, "w") as archive, archive.open("sneaky/data.pkl", "w") as data:
        Sneaky(data).dump({"model": "here"})
    with pytest.raises(UnsafeFileError, match="it refers to 'module'"):
        read_pth(path)


def craft(path, storage=bytes(400), compression=zipfile.ZIP_STORED, **tensor):
    """Write a .pth whose handmade pickle describes one tensor of `storage` in any way."""
    default = {"entry": "0", "offset": 0, "shape": (2, 3), "stride": (3, 1), "after": b"", "kind": "FloatStorage"}
    described = default | tensor

    def plain(value):
        return pickle.dumps(value, 2)[2:-1]  # without the header and the final STOP

    pid = b"(" + plain("storage") + b"ctorch\n" + described["kind"].encode() + b"\n" + plain(described["entry"])
    pid += plain("cpu") + plain(100) + b"tQ"
    arguments = (
        pid + b"".join(plain(described[key]) for key in ("offset", "shape", "stride")) + plain(False) + plain({})
    )
    made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR" + described["after"]
    content = b"\x80\x02}" + plain("model") + b"}" + plain("cls_token") + made + b"ss."
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x/data.pkl", content)
        archive.writestr("x/data/0", storage)
    return path


def test_a_crafted_file_that_is_right_is_read(tmp_path):
    path = craft(tmp_path / "good.pth", np.arange(100, dtype=np.float32).tobytes(), offset=4)
    assert open_weights(path).read("cls_token").tolist() == [[4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(
    "tensor",
    [
        {"stride": (1100, -400)}, {"stride": (11 * 10**10, -4 * 10**10)}, {"offset": -5}, {"offset": 95},
        {"shape": (2**40, 1), "stride": (0, 1)}, {"shape": (2,)}, {"shape": (True, 2)}, {"shape": ("q", 1)},
        {"stride": (30, 1), "shape": (5, 3)}, {"entry": "../../etc/passwd"}, {"entry": 7}, {"kind": "Size"},
    ],
    ids=str,
)  # fmt: skip
def test_tensors_that_reach_outside_of_their_storage_are_refused(tmp_path, tensor):
    with pytest.raises(ValueError, match=r"bad\.pth is (refused|damaged)"):
        open_weights(craft(tmp_path / "bad.pth", **tensor))


def test_a_pickle_cannot_rewrite_what_it_made(tmp_path):
    """The BUILD opcode sets attributes: of a tensor, to read another file; of the reader, to change it."""
    for state in ({"entry": "secret"}, {"path": "/etc/passwd"}, (None, {"entry": "secret"})):
        build = pickle.dumps(state, 2)[2:-1] + b"b"
        with pytest.raises(ValueError, match=r"bad\.pth is (refused|damaged)"):
            open_weights(craft(tmp_path / "bad.pth", after=build))
    path = tmp_path / "worse.pth"
    with zipfile.ZipFile(path, "w") as archive:
        build = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + pickle.dumps({"polluted": 1}, 2)[2:-1] + b"b."
        archive.writestr("x/data.pkl", build)
    with pytest.raises(UnsafeFileError, match="tries to rewrite the reader"):
        read_pth(path)


def test_bombs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="its entries are compressed"):
        open_weights(craft(tmp_path / "bomb.pth", bytes(10**6), zipfile.ZIP_DEFLATED))
