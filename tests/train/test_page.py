"""The page of a run: what it shows, what it keeps, and that names cannot become markup."""

import base64
import hashlib
import json
import re
import shutil

import numpy as np
import pytest

from minicait.cli import main
from minicait.data.groups import unwrapped
from minicait.data.picture import normalise
from minicait.data.shapes import Shapes
from minicait.explain.attention import saliency_maps
from minicait.files.tensorfile import open_tensors, write_tensors
from minicait.models import create_model
from minicait.run import mistakes, sections
from minicait.run.film import MAX_FRAMES, Film, as_bytes
from minicait.run.journal import Row, best_row
from minicait.run.mistakes import Evaluation, summary
from minicait.run.overview import Overview
from minicait.run.start import resume_run
from minicait.train.evaluate import Guesses
from tests.explain.test_report import Page
from tests.train.runs import assert_same_run, tensors, train

NASTY = ['<img src=x onerror="alert(1)">', "</script><script>alert(1)</script>", "{{title}}", "a & 'b'", "&lt;",
         "\u202egnp", "x" * 300, '"></td><b>', "]]>", "<!--"]  # fmt: skip


def page_of(folder):
    return (folder / "index.html").read_text(encoding="utf-8")


def test_what_the_page_shows(finished):
    text = page_of(finished)
    page = Page(text)
    assert "<h1>shapes-tiny-1</h1>" in text and "3 of 3 <small>complete</small>" in text
    assert "cait_tiny_32 with" in text and "48 training and 20 validation images" in text
    assert "<p>Maps by the averaged weights of the same validation images after every epoch, " in text
    assert "by the averaged weights with the highest probabilities, each beside its attention map" in text
    assert text.count('class="curves"') == 5 and text.count(">epoch<") == 5
    for label in ("loss", "top-1 in %", "attention in %", "images per second", "time in %"):
        assert f">{label}<" in text, label
    assert [have["href"] for tag, have in page.tags if tag == "a"][:4] == [
        "report-1.html", "report-2.html", "report-3.html", "report-1.html",
    ]  # fmt: skip
    for tag, have in page.tags:
        if tag == "a":
            assert (finished / have["href"]).is_file(), have
    assert '<th scope="row">label_smoothing</th>' in text and '<th scope="row">difficulty</th><td>easy</td>' in text
    numbers = json.loads(page.scripts["numbers"])
    assert numbers["film"]["epochs"] == [0, 1, 2, 3] and numbers["film"]["last"] == 3
    maps = np.frombuffer(base64.b64decode(numbers["film"]["maps"]), np.uint8)
    assert maps.size == 4 * len(numbers["film"]["labels"]) * 2 * 2 and maps.max() == 255
    assert all(str(guess) in numbers["film"]["names"] for frame in numbers["film"]["guesses"] for guess in frame)


def test_the_counts_of_the_last_evaluation(finished):
    cells = tensors(finished / "page.safetensors")["evaluation/cells"]
    drawn = re.findall(r'<td class="(hit|miss)" style="--share: ([\d.]+)">(\d+)</td>', page_of(finished))
    assert sorted(int(count) for *_, count in drawn) == sorted(cells[:, 2].tolist()) and cells[:, 2].sum() == 20
    correct = sum(int(count) for kind, _, count in drawn if kind == "hit")
    assert f"classified {correct} of 20 validation images correctly" in page_of(finished)
    state = tensors(finished / "page.safetensors")
    shapes = Shapes(20, 16, 1_000_003, "easy")
    for position, label, guess in state["evaluation/worst"].tolist():
        assert shapes[position][1] == label != guess
    assert (np.diff(state["evaluation/probabilities"]) <= 0).all()


def test_the_page_asks_for_nothing_and_runs_one_script(finished):
    text = page_of(finished)
    policy = dict(part.split(None, 1) for part in re.search('Policy" content="([^"]*)"', text)[1].split("; "))
    (script,) = re.findall(r'<script type="module">(.*?)</script>', text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == {"default-src": "'none'", "img-src": "data:", "style-src": "'unsafe-inline'",
                      "script-src": f"'sha256-{digest}'", "base-uri": "'none'", "form-action": "'none'"}  # fmt: skip
    assert not re.search(r'\son\w+="', text) and not re.search(r"\{\{\w+\}\}", text)
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+\.\w+[\w./-]*", re.sub(r"base64,[\w+/=]+", "", text)))
    assert addresses <= {"http://www.w3.org/2000/svg"}


def test_the_page_can_be_used_without_eyes_or_hands(finished):
    page = Page(page_of(finished))
    ids = {have["id"] for _, have in page.tags if "id" in have}
    for tag, have in page.tags:
        if have.get("role") in ("img", "region") and tag != "svg":  # an svg has a title
            assert have["aria-label"]
        assert have.get("aria-labelledby", "h-film") in ids and have.get("for", "frame") in ids
    assert page.all(id="film-status", aria_live="polite") and ("html", {"lang": "en"}) in page.tags
    assert all(have.get("tabindex") == "0" for have in page.all(role="region"))


def test_hostile_names_stay_names(narrow, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Shapes, "classes", tuple(NASTY))
    assert train(tmp_path, "--epochs", "1", "--train-images", "16") == 0
    text = page_of(tmp_path / "shapes-tiny-1")
    page = Page(text)
    assert "<img" not in text and "alert(1)</" not in text and "<b>\n" not in text and "<!--" not in text
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "link", "style", "body", "header", "h1", "p", "dl", "div", "dt", "dd", "small",
        "main", "section", "h2", "svg", "rect", "g", "text", "line", "polyline", "circle", "table", "thead", "tbody",
        "tr", "th", "td", "span", "figure", "canvas", "figcaption", "b", "button", "label", "input", "output",
        "details", "summary", "ul", "li", "a", "footer", "noscript", "script",
    }  # fmt: skip
    assert len(page.scripts) == 2 and not any(key.startswith("on") for _, have in page.tags for key in have)
    assert (
        "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;" in text and "\u202e" not in text
    )  # it would reverse the text
    assert ">{{title}}<" in text  # a class name is not a placeholder
    names = json.loads(page.scripts["numbers"])["film"]["names"]
    assert set(names.values()) <= {sections.plain(name) for name in NASTY}


def test_a_model_without_maps_has_no_film(narrow, tmp_path, capsys):
    options = ["--preset", "resmlp_mini", "--epochs", "1", "--train-images", "16"]
    assert train(tmp_path, *options) == 0
    (folder,) = tmp_path.iterdir()
    text = page_of(folder)
    assert 'id="film"' not in text and "<canvas" not in text and "film" not in json.loads(Page(text).scripts["numbers"])
    assert text.count('class="map plain"') == 8 and "beside its attention map" not in text
    assert not any(name.startswith("film") for name in tensors(folder / "page.safetensors"))


def test_the_last_evaluation_stays_until_the_next(narrow, tmp_path, capsys, monkeypatch):
    """Epochs that were not evaluated have a frame in the film, and no new mistakes."""
    pages, real = [], Overview.write

    def kept(self, run):
        real(self, run)
        pages.append(page_of(run.path))

    monkeypatch.setattr(Overview, "write", kept)
    assert train(tmp_path, "--epochs", "4", "--evaluate-every", "3", "--train-images", "16") == 0
    found = [re.search(r"After epoch (\d), the averaged", page) for page in pages]
    assert [None if match is None else int(match[1]) for match in found] == [None, 1, 1, 1, 4, 4]
    frames = [json.loads(Page(page).scripts["numbers"])["film"]["epochs"] for page in pages]
    assert frames == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


# ---- the film


def test_frames_are_the_maps_of_the_model():
    shapes, model = Shapes(40, 32), create_model("cait_tiny_32", 10, seed=2)
    film = Film(shapes, None, 10, model.grid)
    film.add(0, model, threads=1)
    (frame,) = film.frames
    assert len(film.images) == 6 == len({chosen.label for chosen in film.images})
    for chosen, picture, guess, p in zip(film.images, frame.maps, frame.guesses, frame.probabilities, strict=True):
        seen = saliency_maps(model, normalise(shapes[chosen.position][0])[None])
        np.testing.assert_allclose(picture, as_bytes(seen.maps[0][0]), atol=1)
        assert guess == seen.probabilities[0].argmax() and p == pytest.approx(seen.probabilities[0].max(), rel=1e-5)
    film.add(1, model, threads=2)
    np.testing.assert_array_equal(film.frames[1].maps, frame.maps)  # for any number of threads
    film.add(1, model)
    assert [frame.epoch for frame in film.frames] == [0, 1]


class Few(Shapes):
    classes = ("round", "not round")

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, int(label > 1)


def test_few_classes_have_several_images():
    film = Film(Few(60, 32), None, 10, (8, 8))
    assert [chosen.label for chosen in film.images] == [0, 0, 0, 1, 1, 1]
    assert len({chosen.position for chosen in film.images}) == 6


@pytest.mark.parametrize(
    ("epochs", "grid"), [(1, (4, 4)), (120, (14, 14)), (400, (14, 14)), (10**6, (4, 4)), (50, (256, 256))]
)
def test_a_long_film_is_thinned_out(epochs, grid):
    film = Film(Shapes(1, 32), None, epochs, grid)
    frames = [0, *range(film.stride, epochs, film.stride), epochs]
    assert len(set(frames)) <= MAX_FRAMES + 2 and len(frames) * 6 * grid[0] * grid[1] <= 2_500_000


def test_overflowed_activations_make_no_impossible_frame():
    assert as_bytes(np.array([np.nan, np.inf, -np.inf, 0.5, 1])).tolist() == [0, 255, 0, 128, 255]


def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / finished.name)


def test_a_resumed_run_drops_later_frames(finished, tmp_path):
    folder = copied(finished, tmp_path)
    run = resume_run(folder, device="cpu")
    run.lock.release()
    assert [frame.epoch for frame in run.overview.film.frames] == [0, 1, 2, 3] and run.overview.evaluation.epoch == 3
    assert run.overview.load(folder, 1) is None
    assert [frame.epoch for frame in run.overview.film.frames] == [0, 1]


def test_a_run_whose_page_is_gone_writes_another(finished, tmp_path, capsys):
    folder = copied(finished, tmp_path)
    (folder / "index.html").unlink()
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    assert_same_run(folder, finished)
    times = r"Memory</dt>.*"
    assert re.sub(times, "", page_of(folder)) == re.sub(times, "", page_of(finished))


DAMAGES = {
    "nothing": lambda path: path.write_bytes(b""),
    "another film": lambda path: change(path, "film/maps", lambda x: x[:, :1]),
    "another grid": lambda path: change(path, "film/maps", lambda x: x.repeat(2, -1)),
    "guesses that are no integers": lambda path: change(path, "film/guesses", lambda x: x.astype(np.float64)),
    "classes that are no integers": lambda path: change(path, "evaluation/cells", lambda x: x.astype(np.float32)),
    "an impossible guess": lambda path: change(path, "film/guesses", lambda x: x + 10),
    "an impossible probability": lambda path: change(path, "film/probabilities", lambda x: x + np.nan),
    "epochs backwards": lambda path: change(path, "film/epoch", lambda x: x[::-1]),
    "a single epoch": lambda path: change(path, "film/epoch", lambda x: x[0]),
    "another entry": lambda path: change(path, "film/epoch", lambda x: x, "surprise/epoch"),
    "an entry less": lambda path: change(path, "evaluation/worst", lambda x: x, "evaluation/other"),
    "an image that is not there": lambda path: change(path, "evaluation/worst", lambda x: x + 20),
    "a class that is not there": lambda path: change(path, "evaluation/cells", lambda x: x + 10),
    "classes that are too many": lambda path: change(path, "evaluation/totals", lambda x: x.repeat(2)),
    "words": lambda path: change(path, "evaluation/epoch", lambda x: x.repeat(3)),
}


def change(path, name, what, new_name=None):
    arrays = tensors(path)
    arrays[new_name or name] = what(arrays.pop(name))
    write_tensors(path, arrays, open_tensors(path).metadata)


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_numbers_are_ignored_with_a_warning(finished, tmp_path, name):
    folder = copied(finished, tmp_path)
    DAMAGES[name](folder / "page.safetensors")
    run = resume_run(folder, device="cpu")
    run.lock.release()
    (warning,) = run.warnings
    assert "page.safetensors is damaged and was ignored" in warning and "\n" not in warning and len(warning) < 400
    assert run.overview.film.frames == [] and run.overview.evaluation is None
    run.overview.write(run)
    assert "No epoch has been evaluated yet." in page_of(folder)


# ---- mistakes


def guesses_of(labels, classes):
    guesses = Guesses()
    guesses.add(np.eye(max(classes) + 1)[classes] * 5, np.array(labels))
    return guesses


def test_many_classes_have_a_list_of_pairs():
    labels, classes = [0] * 4 + [7] * 4 + [29], [0, 0, 1, 1, 7, 8, 8, 8, 29]
    found = summary(3, guesses_of(labels, classes), 30, (), (2, 2))
    assert found.matrix is None and found.cells.tolist() == [[7, 8, 3], [0, 1, 2]]
    names = [f"<{i}>" for i in range(30)]
    text = sections.confusion(found, names, False)
    assert "After epoch 3, the weights classified 4 of 9 validation images correctly (44.4%)" in text
    assert '<th scope="row">&lt;7&gt;</th><th scope="row">&lt;8&gt;</th><td>3</td><td>75.0%</td>' in text


def test_positions_of_mistakes_count_skipped_images():
    found = summary(1, guesses_of([0, 1, 1], [0, 0, 1]), 2, {0: "damaged", 2: "damaged"}, (2, 2))
    assert found.worst.tolist() == [[3, 1, 0]] and found.matrix.tolist() == [[1, 0], [1, 1]]


def test_no_mistakes():
    found = summary(1, guesses_of([0, 1, 1], [0, 1, 1]), 2, (), (2, 2))
    text = sections.mistakes(found, {}, Shapes(3, 16), ["a", "b"], False)
    assert "the model classified every validation image correctly" in text
    model = create_model("cait_tiny_32", 10)
    assert mistakes.with_maps(found, model, Shapes(3, 32), None) is found


def test_numbers_of_an_evaluation_are_taken_as_they_were_saved():
    found = summary(1, guesses_of([0, 1, 1], [0, 0, 1]), 2, (), (2, 2))
    again = mistakes.loaded(found.arrays(), 3, (2, 2), 2)
    assert isinstance(again, Evaluation) and again.worst.tolist() == found.worst.tolist()


def test_images_of_files_have_their_names(tmp_path):
    from PIL import Image

    from minicait.data import Source

    for i, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for j in range(3):
            Image.new("RGB", (8, 8), (80 * i, 80 * j, 0)).save(tmp_path / name / f"{j}<.png")
    val = Source(str(tmp_path), val_fraction=0.4).open(8).val
    found = summary(1, guesses_of([0, 1], [1, 1]), 2, (), (2, 2))
    text = sections.mistakes(found, {0: "data:,"}, val, ["cat", "dog"], True)
    path = unwrapped(val).samples[0][0]
    name = path.name.replace("<", "&lt;")
    assert f'<span title="cat/{name}">{name}</span>' in text and '<b class="wrong">dog</b>' in text
    assert "Wrong predictions by the averaged weights with the highest probabilities.</p>" in text


# ---- small things


def test_the_best_epoch_is_the_last_of_equals():
    def row(epoch, top1, ema):
        return Row(epoch, 1, 0.1, 1.0, None, top1, None, ema, None, None, 1.0, 0.0, 1.0)

    rows = [row(1, 0.5, 0.4), row(2, 0.3, 0.5), row(3, None, None)]
    assert best_row(rows).epoch == 2 and best_row(rows[2:]) is None and best_row([]) is None
    notes = {"averaged weights": rows, "weights without averaging": rows[:1]}
    for kind, some in notes.items():
        best = next(fact for fact in sections.facts(some, 3, "cpu") if fact[0] == "Best top-1")
        assert best == ("Best top-1", "50.0%", f"epoch {len(some) - (len(some) > 1)}, {kind}")
    assert ("Best top-1", "50.0%", "epoch 1") in sections.facts([row(1, 0.5, None)], 3, "cpu")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3.4, "3 s"),
        (59.6, "1 min 00 s"),
        (133, "2 min 13 s"),
        (3900, "1 h 05 min"),
        (float("nan"), "unknown"),
        (1e300, "unknown"),
        (-1, "unknown"),
    ],
)
def test_durations(seconds, words):
    assert sections.duration(seconds) == words
