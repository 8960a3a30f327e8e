"""Retrieval: rankings, votes and odds beside numbers of an independent transcription, and by hand."""

import numpy as np
import pytest

import minicait
from autograd import ops
from minicait.data import Loader, Shapes
from minicait.models.grafit import SIGMA
from minicait.train import retrieval
from minicait.train.retrieval import (
    Embedded,
    average_precision,
    class_logits,
    embed_batches,
    log_odds,
    neighbour_odds,
    on_the_fly,
    ranked,
    retrieval_scores,
    spread,
)
from tests.golden.recipe import FOLDER
from tests.models.small_models import SMALL_GRAFITS, SMALL_MODELS


@pytest.fixture(scope="module")
def z():
    with np.load(FOLDER / "family/grafit_losses.npz") as file:
        return dict(file)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def embedded(z):
    """Collection and queries of the golden file, with their fine labels."""
    coarse = z["coarse_of_fine"][z["query_fine"]]
    collection = Embedded(unit(z["gallery"]), z["knn_coarse"], np.arange(14), None)
    return collection, Embedded(unit(z["query"]), coarse, np.arange(6), None), z["knn_fine"], z["query_fine"]


# ---- equations


def test_votes_of_the_nearest(z):
    """Eq. 2.6."""
    for k in (1, 5, 10):
        got = on_the_fly(z["cos"], ranked(z["cos"]), z["knn_fine"], 6, k)
        np.testing.assert_allclose(got, z[f"otf_prob_k{k}"], rtol=1e-12, atol=1e-15)


def test_odds_of_coarse_classes_and_the_conditioned_score(z):
    """Eqs. 2.3 and 2.5."""
    logits = class_logits(z["cos"], z["knn_coarse"], 3)
    p = np.exp(logits - logits.max(1, keepdims=True))
    np.testing.assert_allclose(p / p.sum(1, keepdims=True), z["p_coarse"], rtol=1e-11, atol=1e-16)
    odds = log_odds(logits)
    np.testing.assert_allclose(odds, z["logit_coarse"], rtol=1e-11)
    np.testing.assert_allclose(z["cos"] + odds[:, z["knn_coarse"]], z["score_cond"], rtol=1e-11)


def test_average_precision(z):
    right = z["query_fine"][:, None] == z["knn_fine"]
    same = z["coarse_of_fine"][z["query_fine"]][:, None] == z["knn_coarse"]
    for name, scores in (("cos", z["cos"]), ("cond", z["score_cond"]), ("oracle", z["cos"] + 4 * same)):
        got = average_precision(ranked(scores), right)
        np.testing.assert_allclose(got, z[f"ap_{name}"], rtol=1e-12)
        assert abs(got.mean() - z[f"map_{name}"]) < 1e-12


def test_average_precision_by_hand():
    order = ranked(np.array([[0.9, 0.1, 0.5, 0.5], [0.9, 0.1, 0.5, 0.5]]))
    assert order.tolist() == [[0, 2, 3, 1]] * 2  # of equals, the earlier
    got = average_precision(order, np.array([[False, True, True, False], [False, False, False, False]]))
    assert got[0] == pytest.approx((1 / 2 + 2 / 4) / 2) and np.isnan(got[1])


@pytest.mark.parametrize("logits", [[[0.0, 0.0]], [[500.0, 0.0, -500.0]], [[3.0, 3.0, -40.0]], [[1e-9, 0.0]]])
def test_log_odds_without_overflow(logits):
    z = np.array(logits)
    want = [z[0, c] - np.logaddexp.reduce(np.delete(z[0], c)) for c in range(z.shape[1])]
    np.testing.assert_allclose(log_odds(z)[0], want, rtol=1e-12, atol=1e-12)


def test_one_class_is_certain():
    assert np.isfinite(log_odds(np.zeros((2, 1)))).all()


def test_spread():
    rng = np.random.default_rng(0)
    even, point = unit(rng.standard_normal((2000, 16))), np.tile(unit(rng.standard_normal((1, 16))), (50, 1))
    assert spread(even) == pytest.approx((0, 1), abs=0.02) and spread(point) == pytest.approx((1, 0), abs=1e-6)
    vectors = even[:5]
    cos = vectors @ vectors.T
    assert spread(vectors)[0] == pytest.approx(cos[~np.eye(5, dtype=bool)].mean())


# ---- all queries


@pytest.mark.parametrize("at_once", [1, 30, 1 << 22])
@pytest.mark.parametrize("threads", [1, 3])
def test_scores(z, at_once, threads, monkeypatch):
    """... in any number of chunks."""
    monkeypatch.setattr(retrieval, "AT_ONCE", at_once)
    collection, queries, fine, wanted = embedded(z)
    odds = neighbour_odds(collection, queries, 3, threads)
    np.testing.assert_allclose(odds, z["logit_coarse"], rtol=1e-9)
    scores = retrieval_scores(collection, queries, fine, wanted, odds, threads)
    maps = (scores.map_cos, scores.map_conditioned, scores.map_oracle)
    np.testing.assert_allclose(maps, (z["map_cos"], z["map_cond"], z["map_oracle"]), rtol=1e-12)
    assert scores.knn[10] == pytest.approx((z["otf_prob_k10"].argmax(1) == wanted).mean())
    assert list(scores.knn) == [10] and scores.compared == 6
    assert scores.coarse == pytest.approx((z["logit_coarse"].argmax(1) == queries.labels).mean())


def test_without_a_coarse_prediction_and_with_unknown_classes(z):
    collection, queries, fine, wanted = embedded(z)
    scores = retrieval_scores(collection, queries, fine, np.where(wanted == wanted[0], -1, wanted))
    assert scores.map_conditioned is None and scores.coarse is None
    kept = wanted != wanted[0]
    assert scores.compared == kept.sum() and scores.map_cos == pytest.approx(z["ap_cos"][kept].mean())
    with pytest.raises(ValueError, match="no query has a fine class of the collection"):
        retrieval_scores(collection, queries, fine, np.full(6, -1))


@pytest.mark.parametrize("name", ["deit", "lvvit", "resmlp", "grafit"])
def test_embedding_a_dataset(name):
    model = (SMALL_MODELS | SMALL_GRAFITS)[name]().eval()
    images = Shapes(7, 16)
    got = embed_batches(model, Loader(images, 3, numbered=True, threads=0), threads=2)
    whole = next(iter(Loader(images, 7, threads=0)))
    outputs = model.outputs(whole.images)
    np.testing.assert_allclose(got.vectors, unit(outputs.features.numpy()), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(got.labels, whole.labels)
    assert got.samples.tolist() == list(range(7))
    if name == "grafit":
        assert got.logits is None
    else:
        np.testing.assert_allclose(got.logits, outputs.logits.numpy(), rtol=1e-3, atol=1e-5)


def test_a_classifier_of_neighbours_is_that_of_the_model(z):
    """The same numbers as a Grafit's logits, whose memory is the collection."""
    model = SMALL_GRAFITS["grafit"](num_classes=3, embedding=6, memory=14).astype(np.float64).eval()
    collection, queries, _, _ = embedded(z)
    model.memory.data[...], model.memory_labels.data[...] = collection.vectors, collection.labels
    similar = minicait.models.Outputs(ops.linear(queries.vectors / SIGMA, model.memory))
    logits = model.train().evaluated(similar).numpy()
    np.testing.assert_allclose(logits, class_logits(z["cos"], z["knn_coarse"], 3), rtol=1e-9)
