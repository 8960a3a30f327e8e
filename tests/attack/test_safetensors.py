"""Hostile .safetensors files, and the library beside our reader and writer."""

import json
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minicait
from minicait.files.tensorfile import MAX_HEADER, open_tensors, write_tensors
from minicait.models.cait import CaiT
from tests.attack.bounded import refused, run

GOOD = {"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "y": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]}}  # fmt: skip
TEXT = json.dumps(GOOD)
SIZE = 40


def file(path, header=GOOD, values=bytes(SIZE), length=None):
    text = (
        header
        if isinstance(header, bytes)
        else header.encode()
        if isinstance(header, str)
        else json.dumps(header).encode()
    )
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + values)
    return path


def with_x(**changes):
    return {**GOOD, "x": {**GOOD["x"], **changes}}


def with_metadata(metadata):
    return {"__metadata__": metadata, **GOOD}


HEADERS = {
    "a hole": (GOOD | {"y": {**GOOD["y"], "data_offsets": [25, 41]}}, {"values": bytes(41)}, "y does not begin"),
    "an overlap": (GOOD | {"y": {**GOOD["y"], "data_offsets": [16, 32]}}, {"values": bytes(32)}, "y does not begin"),
    "the same bytes twice": ({"x": GOOD["x"], "y": GOOD["x"]}, {"values": bytes(24)}, "y does not begin where"),
    "bytes behind": (GOOD, {"values": bytes(SIZE + 1)}, "do not end where the file ends"),
    "bytes missing": (GOOD, {"values": bytes(SIZE - 1)}, "do not end where the file ends"),
    "a length of one more": (TEXT + "\n", {"length": len(TEXT)}, "do not end where"),
    "a length of one less": (TEXT, {"length": len(TEXT) - 1}, "damaged"),
    "a length of zero": (TEXT, {"length": 0}, "impossible length"),
    "a length of the file": (TEXT, {"length": len(TEXT) + SIZE + 8}, "impossible length"),
    "a length of 2**63": (TEXT, {"length": 2**63}, "impossible length"),
    "a length of the rest": (TEXT, {"length": len(TEXT) + SIZE}, "damaged"),
    "a header of 6 MB": (TEXT + " " * 6_000_000, {}, "more than 5,000,000"),
    "duplicate names": (TEXT[:-1] + "," + TEXT[1:], {}, "same name twice"),
    "duplicate entries": (TEXT.replace('"dtype": "F32"', '"dtype": "F64", "dtype": "F32"'), {}, "same name twice"),
    "float offsets": (with_x(data_offsets=[0.0, 24.0]), {}, "not valid sizes"),
    "negative offsets": (with_x(data_offsets=[-24, 0]), {}, "not valid sizes"),
    "minus zero": (TEXT.replace("[0, 24]", "[-0, 24]"), {}, "not valid sizes"),
    "offsets of true": (with_x(data_offsets=[False, 24]), {}, "impossible offsets"),
    "three offsets": (with_x(data_offsets=[0, 24, 24]), {}, "impossible offsets"),
    "offsets as a string": (with_x(data_offsets="ab"), {}, "impossible offsets"),
    "offsets the other way": (with_x(data_offsets=[24, 0]), {}, "does not fit its size"),
    "huge offsets": (with_x(data_offsets=[0, 10**30]), {}, "not valid sizes"),
    "float sizes": (with_x(shape=[2.0, 3]), {}, "not valid sizes"),
    "sizes of true": (with_x(shape=[True, 6]), {}, "impossible shape"),
    "a size of a thousand digits": (TEXT.replace("[2, 3]", f"[{'9' * 1000}]"), {}, "not valid sizes"),
    "a size of a million digits": (TEXT.replace("[2, 3]", f"[{'9' * 10**6}]"), {}, "not valid sizes"),
    "a product beyond 64 bits": (with_x(shape=[2**33, 2**33]), {}, "impossible shape"),
    "nothing, but huge": (with_x(shape=[0, 2**33, 2**33], data_offsets=[0, 0]), {}, "impossible shape"),
    "a thousand sizes": (with_x(shape=[1] * 1000), {}, "impossible shape"),
    "no list of sizes": (with_x(shape={}), {}, "impossible shape"),
    "a shape that is too small": (with_x(shape=[2, 2]), {}, "does not fit its size"),
    "an unknown dtype": (with_x(dtype="F33"), {}, "x has dtype F33"),
    "a dtype that is a list": (with_x(dtype=["F32"]), {}, "x has dtype list"),
    "no dtype": ({"x": {"shape": [2], "data_offsets": [0, 8]}}, {}, "no dtype"),
    "an entry that is a list": ({"x": [1]}, {}, "no dtype"),
    "metadata of numbers": (with_metadata({"a": 1}), {}, "metadata is not text"),
    "metadata of objects": (with_metadata({"a": {"b": "c"}}), {}, "metadata is not text"),
    "metadata that is a list": (with_metadata(["a"]), {}, "metadata is not text"),
    "half a character": (TEXT.replace('"x"', '"\\ud800"'), {}, "damaged"),
    "a name of a megabyte": (TEXT.replace('"x"', f'"{"x" * 2**20}"'), {}, "characters, more than 200"),
    "no object": (json.dumps([GOOD]), {}, "not a JSON object"),
    "a space before it": (" " + TEXT, {}, "not a JSON object"),
    "no UTF-8": (TEXT.encode().replace(b"x", b"\xff"), {}, "damaged"),
    "UTF-16": (TEXT.encode("utf-16"), {}, "damaged"),
    "NaN": (with_x(shape=[float("nan")]), {}, "not valid sizes"),
    "text behind": (TEXT + "}", {}, "damaged"),
    "a zero behind": (TEXT + "\0", {}, "damaged"),
    "deep lists": ('{"x":' + "[" * 100_000, {}, "damaged"),
    "deep objects": ('{"x":' * 100_000, {}, "damaged"),
    "millions of lists": ('{"x":[' + "[]," * 1_600_000 + "[]]}", {}, "no dtype"),
    "millions of objects": ('{"x":[' + "{}," * 1_600_000 + "{}]}", {}, "no dtype"),
    "half a million entries": ("{" + ",".join(f'"{i:x}":0' for i in range(450_000)) + "}", {}, "no dtype"),
}  # fmt: skip


@pytest.mark.parametrize(("header", "more", "because"), HEADERS.values(), ids=HEADERS)
def test_hostile_headers(tmp_path, header, more, because):
    refused("weights", "info", file(tmp_path / "bad.safetensors", header, **more), because=because)


def test_the_handmade_file_is_right_but_for_the_lies(tmp_path):
    result = run("weights", "info", file(tmp_path / "good.safetensors", with_metadata({"a": "b"})))
    assert result.code == 0 and "2 tensors, 8 values" in result.out
    assert open_tensors(file(tmp_path / "padded.safetensors", TEXT + " \n")).shapes == {"x": (2, 3), "y": (2,)}
    swapped = open_tensors(file(tmp_path / "any_order.safetensors", dict(reversed(GOOD.items()))))
    assert swapped.read("y").tolist() == [0, 0] and list(swapped.shapes) == ["y", "x"]


def test_a_file_that_shrinks_while_it_is_open(tmp_path):
    path = file(tmp_path / "w.safetensors")
    opened = open_tensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert opened.read("x").shape == (2, 3)
    with pytest.raises(ValueError, match=r"w\.safetensors is cut short: it ends before y does"):
        opened.read("y")


def test_sparse_and_empty_files(tmp_path):
    for length, because in ((0, "impossible length"), (7, "impossible length"), (2**40, "impossible length")):
        path = tmp_path / "sparse.safetensors"
        with path.open("wb") as out:
            out.truncate(length)
        refused("weights", "info", path, because=because)


# ---- beside the library


def mutations(text: str):
    """Headers that are almost right: a few characters replaced, inserted or removed, or numbers changed."""
    spot = st.integers(0, len(text))
    alphabet = st.sampled_from(
        list('{}[]",:0123456789-.eE\\ux \n\tF4I6_BOL') + ["true", "null", "__metadata__", '"y"', "\0"]
    )
    edit = st.tuples(spot, st.integers(0, 3), alphabet | st.just(""))

    def apply(edits):
        result = text
        for at, removed, added in edits:
            result = result[:at] + added + result[at + removed :]
        return result

    numbers = [match.span() for match in re.finditer(r"\d+", text)]
    number = st.tuples(
        st.sampled_from(numbers), st.sampled_from(["0", "1", "2", "3", "8", "16", "24", "40", "41", "-0", "1.0"])
    )
    changed = number.map(lambda change: text[: change[0][0]] + change[1] + text[change[0][1] :])
    return st.lists(edit, min_size=1, max_size=3).map(apply) | changed


@given(header=mutations(json.dumps({"__metadata__": {"a": "b"}, **GOOD})), shift=st.sampled_from([0] * 8 + [-1, 1, 8]))
@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_what_the_library_refuses_is_refused(tmp_path, header, shift):
    from safetensors import SafetensorError, safe_open

    path = file(tmp_path / "w.safetensors", header, length=max(0, len(header.encode()) + shift))
    try:
        with safe_open(path, framework="np") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            metadata = opened.metadata() or {}
    except (SafetensorError, UnicodeDecodeError):
        with pytest.raises(ValueError, match=r"w\.safetensors is damaged"):
            open_tensors(path)
        return
    try:
        ours = open_tensors(path)
    except ValueError:
        return  # duplicate names, dtypes that NumPy does not have, ...
    assert ours.shapes == shapes and ours.metadata == metadata


ARRAYS = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=0, max_size=12).filter(lambda name: name != "__metadata__"),
    st.tuples(
        st.sampled_from(["<f8", "<f4", "<f2", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "?", ">f4", ">i8"]),
        st.lists(st.integers(0, 4), max_size=4),
    ),
    max_size=8,
)  # fmt: skip


@given(
    made=ARRAYS,
    metadata=st.just({}) | st.dictionaries(st.text(max_size=9), st.text(max_size=9), min_size=1, max_size=1),
)
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_our_bytes_are_those_of_the_library(tmp_path, made, metadata):
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in made.items()}
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    write_tensors(ours, arrays, metadata)
    opened = open_tensors(ours)
    assert opened.metadata == metadata and set(opened.shapes) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(opened.read(name), array)
    if arrays:  # without any, the library writes a header that is no JSON
        save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, theirs, metadata or None)
        assert ours.read_bytes() == theirs.read_bytes()


def test_views_are_written_as_they_look(tmp_path):
    values = np.arange(24.0).reshape(2, 3, 4)
    arrays = {"t": values.T, "s": values[:, ::2, ::-1], "b": np.broadcast_to(values[0, 0], (3, 4)), "0": np.float32(2)}
    write_tensors(tmp_path / "w.safetensors", arrays, {})
    opened = open_tensors(tmp_path / "w.safetensors")
    for name, array in arrays.items():
        np.testing.assert_array_equal(opened.read(name), array)


def test_what_cannot_be_read_again_is_not_written(tmp_path):
    for arrays, metadata, because in (
        ({"x": np.zeros(2, complex)}, {}, "x cannot be written: safetensors files have no complex128"),
        ({"x": np.array(["a"])}, {}, "x cannot be written"),
        ({"x": np.zeros(2)}, {"a": "b" * MAX_HEADER}, "its header has 5,000,"),
    ):
        with pytest.raises(ValueError, match=because):
            write_tensors(tmp_path / "w.safetensors", arrays, metadata)
    assert not list(tmp_path.iterdir())


def test_writing_takes_the_memory_of_one_tensor(tmp_path):
    import tracemalloc

    arrays = {f"t{i}": np.broadcast_to(np.float32(1), (1000, 1000)) for i in range(10)}  # 4 MB each when written
    tracemalloc.start()
    write_tensors(tmp_path / "w.safetensors", arrays, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6 and (tmp_path / "w.safetensors").stat().st_size > 40e6


def test_weights_of_ours_are_read_by_the_library(tmp_path):
    from safetensors.numpy import load_file

    model = CaiT(img_size=16, patch_size=4, dim=12, heads=3, depth=2, num_classes=5)
    minicait.save_weights(model, tmp_path / "w.safetensors", list("abcde"))
    loaded = load_file(tmp_path / "w.safetensors")
    assert {name: a.tobytes() for name, a in loaded.items()} == {n: a.tobytes() for n, a in model.state_dict().items()}
