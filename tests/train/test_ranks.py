"""What needs no MPI: how a batch is shared out, what is refused, and what one rank alone does. The rest: tests/mpi."""

import re
from pathlib import Path

import numpy as np
import pytest

from minicait import create_model
from minicait.data import Loader
from minicait.data.picture import BadImageError
from minicait.models import find_model
from minicait.train import RECIPES, Ranks, RanksError, Recipe, Trainer, recipe, tree
from minicait.train.gradients import Gradients
from minicait.train.job import world
from minicait.train.ranks import ALONE
from minicait.train.sharding import sharded

BATCH = 24


class Several(Ranks):
    """Ranks that have nothing to say to each other."""

    def __init__(self, size, rank=0, values=None):
        self.size, self.rank, self.values = size, rank, values

    def gather(self, value, patient=False):
        return [value] * self.size if self.values is None else self.values


def model(name="cait_tiny_32"):
    return create_model(name, 10, img_size=16, patch_size=4)


class Images:
    classes = ("a", "b")

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full((16, 16, 3), index, np.uint8), index % 2


def test_a_process_that_mpiexec_did_not_start_is_alone(monkeypatch):
    for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    assert world() is None
    assert ALONE.leads and ALONE.gather(3) == [3] and ALONE.broadcast(lambda: 4) == ALONE.staggered(lambda: 4) == 4
    assert ALONE.joined([1, 2, 3]) == [1, 2, 3] and ALONE.describe() is None


@pytest.mark.parametrize("micro_batch", [1, 3, 5, 8, None])
def test_rows_of_all_ranks_are_the_batch(micro_batch):
    net = model()
    leaves = Gradients(net, 1, micro_batch).leaves(BATCH)
    for size in range(1, leaves + 1):
        rows = Gradients(net, 1, micro_batch, ranks=Several(size)).rows(BATCH)
        assert [row for own in rows for row in own] == list(range(BATCH))
        assert all(len(own) for own in rows)
    with pytest.raises(ValueError, match=f"cannot be shared by {leaves + 1} ranks: start at most {leaves}"):
        Gradients(net, 1, micro_batch, ranks=Several(leaves + 1)).rows(BATCH)


def test_the_advice_for_too_many_ranks_works(monkeypatch):
    monkeypatch.setattr(tree, "MAX_LEAVES", 6)
    for size in range(3, BATCH + 2):
        with pytest.raises(ValueError, match="cannot be shared") as refused:
            Gradients(model(), 1, BATCH // 2, ranks=Several(size)).rows(BATCH)
        advice = re.search(r"or try micro_batch=(\d+)$", str(refused.value))
        assert (advice is not None) == (size <= 6)
        if advice is not None:
            assert len(Gradients(model(), 1, int(advice[1]), ranks=Several(size)).rows(BATCH)) == size


def test_the_script_for_slurm_starts_ranks_that_the_batch_has_leaves_for():
    page = (Path(__file__).parents[2] / "docs/ranks.md").read_text(encoding="utf-8")
    nodes, each, preset, micro_batch = re.search(
        r"--nodes=(\d+) --ntasks-per-node=(\d+) .*--preset (\w+) .*--micro-batch (\d+)", page, re.S
    ).groups()
    parameters = find_model(f"cait_{preset}_224")[1].cost().parameters
    assert int(nodes) * int(each) == tree.leaf_count(RECIPES["cait"].batch_size // int(micro_batch), parameters)


def test_each_rank_loads_its_rows_and_its_validation_batches():
    images, shares, seen, evaluated = Images(50), [range(5), range(5, 10)], [], []
    whole = [batch.images for batch in Loader(images, 10, True, threads=0).epoch(3)]
    for rank in range(2):
        train, val = Loader(images, 10, True, threads=0), Loader(images, 8, threads=0)
        with sharded(Several(2, rank), shares, train, val, "cpu") as (own, own_val):
            seen.append([batch.images for batch in own.epoch(3)])
            evaluated.append([batch.labels for batch in own_val.epoch(0)])
        assert len(list(val.epoch(0))) == 7  # all of them again
    for batch, parts in zip(whole, zip(*seen, strict=True), strict=True):
        assert np.array_equal(batch, np.concatenate(parts))
    assert [len(batches) for batches in evaluated] == [3, 4]
    in_order = Several(2, values=evaluated).joined([])
    assert np.concatenate(in_order).tolist() == [i % 2 for i in range(50)]


def test_a_validation_batch_that_cannot_be_read_changes_no_order():
    class Damaged(Images):
        def __getitem__(self, index):
            if 8 <= index < 16:
                raise BadImageError(f"{index} is damaged")
            return np.full((16, 16, 3), index, np.uint8), index

    evaluated = []
    for rank in range(2):
        train, val = Loader(Images(10), 10, True, threads=0), Loader(Damaged(50), 8, threads=0, skip_bad=True)
        with sharded(Several(2, rank), [range(5), range(5, 10)], train, val, "cpu") as (_, own_val):
            evaluated.append([batch.labels for batch in own_val.epoch(0)])
    in_order = np.concatenate(Several(2, values=evaluated).joined([]))
    assert in_order.tolist() == [*range(8), *range(16, 50)]


def test_what_is_refused_on_several_ranks():
    with pytest.raises(ValueError, match=r"BatchNorm .* couples the samples of a batch, so this model trains on a"):
        Trainer(model("lvvit_mini_32"), ranks=Several(2)).step(np.zeros((8, 3, 16, 16), np.float32), np.zeros(8, int))
    with pytest.raises(ValueError, match=r"loss=neighbours .* trains on a single rank only"):
        Trainer(model("grafit_deit_mini_32"), recipe("small-grafit"), ranks=Several(2))
    trainer = Trainer(model(), Recipe(batch_size=8), ranks=Several(2))
    loader = Loader(Images(8), 8, True, threads=0)
    with pytest.raises(TypeError, match="several ranks need loaders of the type"):
        trainer.fit(loader, [(np.zeros((1, 3, 16, 16), np.float32), np.zeros(1, int))])


def test_ranks_that_differ_are_named():
    with pytest.raises(RanksError, match="rank 2 has other weights than rank 0; do something"):
        Several(3, values=["a", "a", "b"]).require_equal("weights", "a", "do something")
    Several(3).require_equal("weights", "a", "do something")
