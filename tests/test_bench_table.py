"""minicait bench --table, and the model of a step on more cores."""

import json

import pytest

from minicait.bench import Job, Measured, table
from minicait.bench.cores import CORES, busiest, cut, step_on_cores
from minicait.bench.table import Row
from minicait.cli import main
from minicait.models import find_model
from minicait.train.workers import can_fork

SMALL = (Row("cait_tiny_32", 4), Row("cait_small_32", 2, stochastic_depth=True), Row("cait_tiny_32", 1, "predict"),
         Row("cait_tiny_32", 2, "folder"))  # fmt: skip
RUN = ["bench", "--table", "--rounds", "1", "--threads", "1"]


def test_rows_are_of_models_that_exist():
    for row in table.ROWS:
        job = Job(row.model, row.batch, row.work, 2, stochastic_depth=row.stochastic_depth)
        assert job.gigaflop() > 0
        names = table.names(row, "timm")
        assert names == ["minicait", "torch" if find_model(row.model)[0].name in ("patchconvnet", "lvvit") else "timm"]


def test_table(monkeypatch, capsys):
    monkeypatch.setattr(table, "ROWS", SMALL)
    assert main(RUN) == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("1 thread, 1 round, ") and columns.split() == [
        "ours",
        "theirs",
        "times",
        "memory",
        "floor",
    ]
    assert [row.split("  ")[0] for row in rows] == [
        "cait_tiny_32, batch 4, training step", "cait_small_32, batch 2, training step with stochastic depth",
        "cait_tiny_32, batch 1, prediction", "cait_tiny_32, batch 2, prediction of JPEG files",
    ]  # fmt: skip
    assert all(row.endswith("%") and " MB " in row for row in rows)


def test_table_as_json(monkeypatch, capsys):
    monkeypatch.setattr(table, "ROWS", SMALL[:2])
    assert main([*RUN, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["threads"] == 1 and result["rounds"] == 1 and result["against"] is None
    first, second = result["rows"]
    assert (first["model"], first["batch"], first["stochastic_depth"]) == ("cait_tiny_32", 4, False)
    assert second["stochastic_depth"] and second["floor"] > 0 and len(second["sides"]) == 1


def test_a_row_that_fails_is_told_and_the_others_go_on(monkeypatch, capsys):
    def measure(job, names, rounds):
        if job.model == "cait_small_32":
            raise ValueError("the measurement of timm ended early")
        return [Measured(name, [0.5] * rounds, 100.0) for name in names]

    monkeypatch.setattr(table, "measure", measure)
    monkeypatch.setattr(table, "ROWS", SMALL)
    assert main([*RUN, "--against", "timm"]) == 2
    rows = capsys.readouterr().out.splitlines()[2:]
    assert rows[1].endswith("  the measurement of timm ended early") and len(rows) == 4
    assert rows[3].split()[-7:-1] == ["0.500", "s", "0.500", "s", "1.00", "1.00"]
    monkeypatch.setattr(table, "ROWS", SMALL[1:])
    assert main([*RUN, "--against", "timm"]) == 2  # the first: none would do better
    captured = capsys.readouterr()
    assert captured.err == "minicait: the measurement of timm ended early\n" and not captured.out


@pytest.mark.parity
def test_table_beside_pytorch(monkeypatch, capsys):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[compare]'")
    monkeypatch.setattr(table, "ROWS", (Row("cait_small_32", 2, stochastic_depth=True), Row("lvvit_mini_32", 2)))
    assert main([*RUN, "--against", "timm", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [[side["name"] for side in row["sides"]] for row in rows] == [["minicait", "timm"], ["minicait", "torch"]]
    assert all(row["times_as_fast"] > 0 and row["memory_ratio"] > 0 for row in rows)


def test_the_busiest_worker():
    assert cut(7, 2) == [2, 2, 2, 1]
    images = [2, 2, 2, 1]
    assert [busiest(images, cores) for cores in (1, 2, 3, 4, 32)] == [7, 4, 3, 2, 2]


def test_a_step_on_more_cores():
    """Of cait_tiny_64, a batch of 64 has 4 pieces: half of them on two cores, one each on four or more."""
    job, side = Job("cait_tiny_64", 64, "train", 2), Measured("minicait", [0.2], 100.0, 0.01, 0.4)
    found = step_on_cores(job, side)
    assert found["pieces"] == found["leaves"] == 4
    assert [step["cores"] for step in found["on_cores"]] == list(CORES) == [2, 4, 8, 16, 32]
    assert [step["seconds"] for step in found["on_cores"]] == pytest.approx([0.21, 0.11, 0.11, 0.11, 0.11])
    assert found["on_cores"][0]["efficiency"] == pytest.approx(0.41 / 0.42)
    assert found["on_cores"][2]["efficiency"] == pytest.approx(0.41 / 0.88)
    job.micro_batch = 1
    assert step_on_cores(job, side)["pieces"] == 64 and step_on_cores(job, side)["leaves"] == 16
    assert step_on_cores(job, Measured("minicait", [0.2], 100.0, 0.4)) == {}  # all of it in the parent
    assert step_on_cores(Job("cait_tiny_64", 64, "predict", 2), side) == {}


@pytest.mark.skipif(not can_fork(), reason="worker processes are for Linux")
def test_cpu_time_of_parent_and_workers(capsys):
    small = ["bench", "--model", "cait_tiny_32", "--batch", "8", "--rounds", "2"]
    assert main([*small, "--threads", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (side,) = result["sides"]
    assert 0 < side["parent_cpu"] < side["worker_cpu"] < 10 and len(result["on_cores"]) == 5
    assert main([*small, "--threads", "2"]) == 0
    text = capsys.readouterr().out
    assert " s in worker processes\na model, not a measurement: " in text and "\n  efficiency" in text
    assert main([*small, "--threads", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sides"][0]["worker_cpu"] == 0 < result["sides"][0]["parent_cpu"] and "on_cores" not in result
