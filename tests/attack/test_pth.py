"""Hostile .pth files: one sentence each, in bounded time and memory; and the files that PyTorch really writes."""

import pickle
import struct

import numpy as np
import pytest

from minicait.files import unpickle
from minicait.files.weights import open_weights
from tests.attack.bounded import refused, run
from tests.attack.pth_files import EMPTY_TUPLE, MARK, checkpoint, named, parts, plain, pth, storage, tensor, zip_file

DEEP = 200_000
HUGE = b"\x8a\xff" + b"\xff" * 254 + b"\x7f"  # LONG1 of 255 bytes
NEVER = "could run code"


def long4(size: int) -> bytes:
    return b"\x8b" + struct.pack("<i", size) + bytes(size - 1) + b"\x7f"


def nested_ids(depth: int) -> bytes:
    """A persistent id whose key is a persistent id, and so on."""
    start = MARK + plain("storage") + named("torch", "FloatStorage")
    return start * depth + plain("0") + b"tQ" * depth


def doubled(times: int) -> bytes:
    """A tuple of one tuple twice, which has one twice, and so on: small in memory, endless when it is printed."""
    return EMPTY_TUPLE + b"".join(b"q%ch%c\x86" % (i, i) for i in range(times))


PICKLES = {  # made of the tensor, or of something beside it: why it is refused
    "20 MB integer": (checkpoint(before=long4(9_000_000) + b"0"), "uses LONG4"),
    "text integer": (checkpoint(before=b"I" + b"9" * 9_000_000 + b"\n0"), "damaged"),
    "text long": (checkpoint(before=b"L" + b"9" * 4000 + b"L\n0"), "uses LONG"),
    "nested persistent ids": (checkpoint(tensor(of=nested_ids(DEEP))), "not a tensor's storage"),
    "deep persistent id": (checkpoint(tensor(of=EMPTY_TUPLE + b"\x85" * DEEP + b"Q")), "not a tensor's storage"),
    "an id of 2**60 tuples": (checkpoint(tensor(of=MARK + doubled(60) + b"NNNNtQ")), "not a tensor's storage"),
    "storage of a number": (checkpoint(tensor(of=plain(7) + b"Q")), "refers to 'int', which is not a tensor's storage"),
    "storage without a dtype": (checkpoint(tensor(of=plain(("storage", "FloatStorage", "0")) + b"Q")), "refers to"),
    "storage that is not there": (checkpoint(tensor(of=storage("1"), shape=(0,), stride=(1,))), "has no storage 1"),
    "20,000 huge sizes": (checkpoint(tensor(MARK + HUGE * 20_000 + b"t", (0,) * 20_000)), "impossible shape"),
    "20,000 huge strides": (checkpoint(tensor((1,), MARK + HUGE * 20_000 + b"t")), "impossible tensor"),
    "a long tensor name": (checkpoint(after=plain("a" * 2**20) + tensor() + b"s"), "characters, more than 200"),
    "huge sizes": (checkpoint(tensor(HUGE + b"\x85", plain((1,)))), "impossible shape"),
    "huge strides": (checkpoint(tensor((2, 2), HUGE + plain(1) + b"\x86")), "beyond its storage"),
    "huge offset": (checkpoint(tensor(offset=HUGE)), "beyond its storage"),
    "huge sizes of nothing": (checkpoint(tensor((0, 2**40, 2**40), (1, 1, 1))), "impossible shape"),
    "a scalar of an empty storage": (checkpoint(tensor((), (), 100)), "beyond its storage"),
    "nothing beyond the storage": (checkpoint(tensor((0,), (1,), 101)), "beyond its storage"),
    "many values from few": (checkpoint(tensor((10**6,), (0,))), "values overlap"),
    "sizes in a list": (checkpoint(tensor([2, 3])), "impossible tensor"),
    "sizes that are floats": (checkpoint(tensor((2.0, 3))), "impossible shape"),
    "negative bit": (checkpoint(tensor(more=plain(False) + plain({}) + plain({"neg": True}))), "negated"),
    "too many arguments": (checkpoint(tensor(more=plain(0) * 9)), "wrong arguments"),
    "a tensor is called": (checkpoint(tensor() + EMPTY_TUPLE + b"R"), "not a function"),
    "a dict of pairs": (checkpoint(before=named("collections", "OrderedDict") + plain(([1],)) + b"R0"), "not a func"),
    "a rewritten function": (checkpoint(before=named("torch", "Size") + plain({"a": 1}) + b"b0"), "rewrite"),
    "a rewritten tensor": (checkpoint(tensor() + plain({"entry": 1}) + b"b"), "rewrite"),
    "a rewritten storage": (checkpoint(tensor(of=storage() + plain({"entry": 1}) + b"b")), "rewrite"),
    "os.system": (checkpoint(before=named("posix", "system") + plain(("true",)) + b"R0"), NEVER),
    "os.system, called otherwise": (checkpoint(before=plain("posix") + plain("system") + b"\x930"), NEVER),
    "a name in another name": (checkpoint(before=named("torch", "Size.__class__") + b"0"), NEVER),
    "a name of a megabyte": (checkpoint(before=named("a" * 2**20, "b") + b"0"), NEVER),
    "a name that is a tuple": (checkpoint(before=EMPTY_TUPLE + b"\x85" * DEEP + plain("a") + b"\x930"), "no name"),
    "an instance of old": (checkpoint(before=MARK + b"iposix\nsystem\n0"), "uses INST"),
    "an extension": (checkpoint(before=b"\x82\x01" + b"0"), "uses EXT1"),
    "more steps than any": (checkpoint(before=b"N0" * 600_000), "more than 1,000,000 steps"),
    "a million lists": (checkpoint(before=b"]" * 990_000 + b"0" * 990_000), "more than 1,000,000 steps"),
    "an empty stack": (b"\x80\x020.", "more from the stack than there is"),
    "a mark too many": (b"\x80\x02(.", "more from the stack than there is"),
    "no mark": (b"\x80\x02t.", "damaged"),
    "a memo that was not made": (b"\x80\x02h\x07.", "damaged"),
    "no end": (b"\x80\x02}", "damaged"),
    "an unknown opcode": (b"\x80\x02\xfe.", "damaged"),
    "text that is no text": (checkpoint(before=b"X\x02\0\0\0\xff\xff0"), "damaged"),
    "a string beyond the end": (checkpoint(before=b"X\xff\xff\xff\x7f"), "damaged"),
    "no dict": (b"\x80\x02]K\x07a.", "no weights in it"),
    "odd items": (checkpoint(after=MARK + plain("a") + b"u"), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize(("pkl", "because"), PICKLES.values(), ids=PICKLES)
def test_hostile_pickles(tmp_path, pkl, because):
    refused("weights", "info", pth(tmp_path / "bad.pth", pkl), because=because)


HARMLESS = {  # once a crash, 8 GB or a traceback; nothing in them is needed, so it is ignored
    "a deep tuple as a key": checkpoint(after=EMPTY_TUPLE + b"\x85" * DEEP + plain(1) + b"s"),
    "a deep list": checkpoint(before=b"]" * DEEP + b"a" * (DEEP - 1) + b"0"),
    "memo indices of 2**29": checkpoint(before=b"Nr\xff\xff\xff\x1f0" + b"Nr\xff\xff\xff\xff0"),
    "keys that collide": checkpoint(
        after=MARK + b"".join(plain(k * (2**61 - 1)) + plain(1) for k in range(1, 50_000)) + b"u"
    ),
    "a list as a key": checkpoint(after=plain([]) + plain(1) + b"s"),
    "rewritten items": checkpoint(after=plain({"items": None, "__class__": 3}) + b"b"),
    "strides of single elements": checkpoint(tensor((1, 2, 3), HUGE + plain(3) + plain(1) + b"\x87")),
    "a frozen set, and a list of lists": checkpoint(before=MARK + plain(1) + b"\x910" + plain([[1, 2], []]) + b"0"),
    "later opcodes": pickle.dumps({"a": [1, b"b", {3}, frozenset({4}), 2**70, 1.5]}, 5)[:-1] + b"0" + checkpoint()[2:],
}


@pytest.mark.parametrize("pkl", HARMLESS.values(), ids=HARMLESS)
def test_harmless_pickles(tmp_path, pkl):
    path = pth(tmp_path / "odd.pth", pkl, {"data/0": np.arange(100, dtype="<f4").tobytes()})
    result = run("weights", "info", path)
    assert result.code == 0 and "cls_token" in result.out and result.megabytes < 250 and result.seconds < 10, result
    assert open_weights(path).read("cls_token").ravel().tolist() == [0, 1, 2, 3, 4, 5]


ARCHIVES = {
    "an encrypted entry": (parts(flags=1), {}, "encrypted"),
    "an unknown method": (parts(method=99), {}, "method 99"),
    "a zip64 offset of 2**59": (parts(offset=2**59), {}, "overlap"),
    "a zip64 size of 2**59": (parts(packed=2**59, size=2**59), {}, "overlap"),
    "sizes that differ": (parts(size=4000), {}, "impossible sizes"),
    "a storage over the pickle": (parts(offset=0), {}, "overlap"),
    "60,000 entries": (
        [*parts(), *({"name": f"x/data/{i}", "offset": 0, "shared": True} for i in range(1, 60_000))],
        {},
        "more than 50,000 entries",
    ),
    "40,000 overlapping entries": (
        [*parts(), *({"name": f"x/data/{i}", "offset": 0, "size": 300, "packed": 300, "shared": True}
                     for i in range(1, 40_000))],
        {},
        "overlap",
    ),
    "a directory of 2**59 bytes": (parts(), {"size": 2**59}, "more than 50,000 entries"),
    "a directory at 2**59": (parts(), {"offset": 2**59}, "not where it says"),
    "2**59 entries": (parts(), {"count": 2**59}, "more than 50,000 entries"),
    "an entry too few": (parts(), {"count": 1}, "directory is damaged"),
    "an entry too many": (parts(), {"count": 3}, "cut short"),
    "the same name twice": ([*parts(), *parts()], {}, "same name"),
    "two pickles": ([*parts(), {"name": "y/data.pkl", "content": checkpoint()}], {}, "2 data.pkl"),
    "a name that is no text": ([*parts(), {"name": "x/\udcff"}], {}, "damaged"),
    "a wrong checksum of the pickle": ([{"name": "x/data.pkl", "content": checkpoint(), "crc": 1}], {}, "checksum"),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "end", "because"), ARCHIVES.values(), ids=ARCHIVES)
def test_hostile_archives(tmp_path, entries, end, because):
    refused("weights", "info", zip_file(tmp_path / "bad.pth", entries, **end), because=because)


def test_the_handmade_archive_is_right_but_for_the_lies(tmp_path):
    assert open_weights(zip_file(tmp_path / "good.pth", parts())).shapes == {"cls_token": (2, 3)}


@pytest.mark.parametrize(
    ("entries", "because"),
    [({"byteorder": b"big"}, "big-endian"), ({"byteorder": b"?" * 10**6}, "big-endian"),
     ({"data.pkl": None}, "0 data.pkl"), ({"data/0": None}, "has no storage 0"),
     ({"data/0": b""}, "beyond its storage"), ({"data.pkl": bytes(unpickle.MAX_PICKLE + 1)}, "too large")],
    ids=["big", "odd order", "no pickle", "no storage", "empty storage", "large"],
)  # fmt: skip
def test_hostile_entries(tmp_path, entries, because):
    refused("weights", "info", pth(tmp_path / "bad.pth", entries=entries), because=because)


def test_many_tensors_of_one_storage_do_not_make_a_large_model(tmp_path):
    views = b"".join(plain(f"t{i}") + tensor((10_000,), (1,)) for i in range(100))
    path = pth(tmp_path / "bad.pth", checkpoint(after=MARK + views + b"u"), {"data/0": bytes(40_000)})
    refused("weights", "info", path, because="share")


def test_a_sparse_file_of_a_terabyte_is_not_read(tmp_path):
    path = tmp_path / "sparse.pth"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(2**40)
    refused("weights", "info", path, because="no zip archive")


def test_what_pytorch_writes_is_read(tmp_path):
    """A training checkpoint with everything that scripts put beside the weights."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    import argparse
    from collections import Counter, OrderedDict, defaultdict
    from pathlib import Path

    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    odd = OrderedDict(model.state_dict())
    odd |= {
        "tied": odd["weight"], "transposed": odd["weight"].T, "half": torch.ones(2).bfloat16(),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.ones(2)), "many": torch.zeros(300, 7),
    }  # fmt: skip
    odd._metadata = model.state_dict()._metadata
    beside = {
        "optimizer": optimiser.state_dict(), "epoch": 3, "best": np.float64(81.5), "array": np.arange(3), "big": 2**100,
        "args": argparse.Namespace(path=Path("x"), groups=defaultdict(list, {(1, 2): [3]}), dtype=torch.float32),
        "rng": torch.get_rng_state(), "numpy": np.random.get_state(), "set": {1}, "complex": 1j,
        "counts": Counter("aab"),
    }  # fmt: skip
    for protocol in (2, 4):
        torch.save({"model": odd, **beside}, tmp_path / "w.pth", pickle_protocol=protocol)
        file = open_weights(tmp_path / "w.pth")
        assert list(file.shapes) == list(odd)
        for name, value in odd.items():
            np.testing.assert_array_equal(file.read(name), value.detach().float().numpy(), err_msg=name)
    torch.save({"model": {"w": torch.ones(3, dtype=torch.complex64).conj().imag}}, tmp_path / "negative.pth")
    refused("weights", "info", tmp_path / "negative.pth", because="negated")
