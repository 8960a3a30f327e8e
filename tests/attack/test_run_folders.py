"""Run folders from strangers: every entry of args.json and of a checkpoint replaced by something else.

The hash of the checkpoint is made to fit, as somebody who tampers with it would.
"""

import json
from dataclasses import fields

import pytest

from minicait.files.tensorfile import open_tensors, write_tensors
from minicait.run.journal import Row
from minicait.run.progress import Progress
from minicait.train.checkpoint import State, _digest
from tests.attack.bounded import count, refused, run

FEW = [None, "x"]
WRONG = [*FEW, -1, [10**400], 1.5, True, [], {}, [[]], {"a": 1}, 10**400, float("nan"), "\x1b[2J"]
some = pytest.mark.parametrize("wrongs", [FEW, pytest.param(WRONG, marks=pytest.mark.slow)], ids=["few", "all"])


def tamper(folder, change):
    """Apply `change` to the state in the only checkpoint of a run."""
    path = folder / "checkpoint.safetensors"
    (folder / "checkpoint-previous.safetensors").unlink(missing_ok=True)
    file = open_tensors(path)
    arrays = {name: file.read(name) for name in file.entries}
    state = json.loads(file.metadata["minicait_checkpoint"])
    change(state, arrays)
    text = json.dumps(state)
    write_tensors(path, arrays, {"minicait_checkpoint": text, "sha256": _digest(text, arrays)})


def resume(folder, *options):
    return run("train", "--device", "cpu", "--resume", folder, *options)


def ends_well(result):
    """Bad input is one sentence and 2. What fits in type and range may also be taken."""
    count("of tampered runs", result)
    assert "Traceback" not in result.out + result.err, result.err
    if result.code != 0:
        assert result.code == 2 and len(result.err.splitlines()) == 1 and result.err.startswith("minicait: "), result
    assert (result.out + result.err).replace("\n", "").isprintable() and result.megabytes < 250
    return result.code


def test_a_run_that_nobody_tampered_with_resumes(folder):
    tamper(folder, lambda state, arrays: None)
    assert resume(folder).code == 0


@some
@pytest.mark.parametrize("name", [field.name for field in fields(State)])
def test_a_state_of_another_type(folder, name, wrongs):
    taken = []
    for wrong in wrongs:
        tamper(folder, lambda state, arrays, wrong=wrong: state.update({name: wrong}))
        if ends_well(resume(folder)) == 0:
            taken.append(wrong)
    assert len(taken) <= 2, taken  # such as a learning rate of 1.5


@some
@pytest.mark.parametrize("name", [field.name for field in fields(Progress)])
def test_a_progress_of_another_type(folder, name, wrongs):
    taken = []
    for wrong in wrongs:
        tamper(folder, lambda state, arrays, wrong=wrong: state["extra"].update({name: wrong}))
        if ends_well(resume(folder)) == 0:
            taken.append(wrong)
    assert len(taken) <= 3, taken


@some
@pytest.mark.parametrize("name", [field.name for field in fields(Row)])
def test_a_row_of_another_type(folder, name, wrongs):
    taken = []
    for wrong in wrongs:
        tamper(folder, lambda state, arrays, wrong=wrong: state["extra"]["rows"][0].update({name: wrong}))
        if ends_well(resume(folder)) == 0:
            taken.append(wrong)
    assert not any(isinstance(wrong, str | list | dict) for wrong in taken), taken


def _drop(key):
    return lambda state, arrays: state.pop(key)


CHANGES = {
    "no batches": (_drop("batches"), "missing"),
    "another entry": (lambda s, a: s.update(surprise=1), "no field"),
    "a batch of a later epoch": (lambda s, a: s.update(batches=10**9), "is not in epoch"),
    "no rows": (lambda s, a: s["extra"].update(rows=[]), "other epochs"),
    "an unknown family": (lambda s, a: s.update(family="gpt"), "gpt"),
    "a wide model": (lambda s, a: s["config"].update(dim=9000, heads=9000 // 48), "does not"),
    "a deep model": (lambda s, a: s["config"].update(depth=10**5), "does not"),
    "a model for large images": (lambda s, a: s["config"].update(img_size=[80000, 80000]), "does not"),
    "many classes": (lambda s, a: s["config"].update(num_classes=10**9), "does not"),
    "another array": (lambda s, a: a.update(surprise=a["model/cls_token"]), "other names, shapes or types"),
    "an array less": (lambda s, a: a.pop("mean/cls_token"), "other names, shapes or types"),
    "another dtype": (lambda s, a: a.update({"mean/cls_token": a["mean/cls_token"].astype("f8")}), "other names"),
    "an infinite loss scale": (lambda s, a: s["scaler"].update(scale=1e400), "loss scaler"),
    "no loss scale": (lambda s, a: s.update(scaler={}), "loss scaler"),
    "more steps than batches": (lambda s, a: s.update(steps=2**62), "more steps than batches"),
    "images of 5,000 digits": (lambda s, a: s["extra"].update(bad=[{"9" * 5000: "x"}, {}]), "corrupt images"),
    "another plan": (lambda s, a: s["extra"]["plan"].update(overfit=True), "args.json changed"),
    "a later version": (lambda s, a: s["extra"].update(version="9.9"), "written by version 9.9"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_that_contradicts_itself(folder, name):
    change, because = CHANGES[name]
    tamper(folder, change)
    refused("train", "--device", "cpu", "--resume", folder, because=because)


def _entries(content, path=()):
    """Paths of all entries of nested JSON."""
    for key, value in content.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from _entries(value, (*path, key))


@some
def test_every_entry_of_the_plan(folder, wrongs):
    """Nothing but what the checkpoint knows is taken, and everything else is a sentence."""
    path = folder / "args.json"
    text = path.read_text()
    for entry in _entries(json.loads(text)):
        for wrong in wrongs:
            content = json.loads(text)
            *outer, last = entry
            part = content
            for key in outer:
                part = part[key]
            if part[last] == wrong or entry == ("version",):
                continue
            part[last] = wrong
            path.write_text(json.dumps(content))
            assert ends_well(resume(folder)) == 2, (entry, wrong)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"[" * 10**5, b"\xff", b'{"recipe": 1e400}', b" " * 10**7]
)
def test_a_plan_that_is_none(folder, content):
    (folder / "args.json").write_bytes(content)
    refused("train", "--resume", folder, because="args.json is damaged")
