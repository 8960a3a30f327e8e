"""The sections of a run's page as HTML. All names in them, of classes, files and folders, are escaped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from ..data.folder import ImageFolder
from ..data.groups import unwrapped
from ..data.loader import Dataset
from ..text import printable, shortened
from ..train.recipe import main_settings
from .console import memory_in_use
from .curves import curves
from .film import Film
from .journal import Panel, Row, best_row, learning_panels, line
from .mistakes import Evaluation

if TYPE_CHECKING:
    from .run import Run

FILES = {  # that a run may leave behind, with what they hold
    "attention.png": "where the model looks",
    "train_batch.jpg": "the first training batch",
    "curves.svg": "the curves",
    "log.csv": "a row for each epoch",
    "args.json": "the settings",
    "weights/best.safetensors": "the best weights",
    "weights/last.safetensors": "the last weights",
}


def plain(name: object, most: int = 200) -> str:
    """A name as text, not too long and without characters that would change the text around it."""
    return shortened(printable(name), most)


def text(name: object, most: int = 200) -> str:
    """A name as HTML."""
    return escape(plain(name, most))


def duration(seconds: float) -> str:
    if not 0 <= seconds < 1e12:  # as a log that somebody edited may claim
        return "unknown"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def headline(run: Run) -> dict[str, str]:
    """Title, a sentence on model and data, and the state of the run as a list of facts."""
    plan, rows, cost = run.plan, run.rows, run.model.cost()
    source = plan.model if plan.weights is None else f"{type(run.model).__name__} from {Path(plan.weights).name}"
    images = f"{len(run.images.train):,} training and {len(run.images.val):,} validation images"
    about = f"{source} with {cost.parameters:,} parameters, on {run.images.name}: {len(run.classes)} classes, {images}."
    return {
        "title": text(run.path.resolve().name),
        "about": text(about, 1000),
        "facts": "\n".join(
            f"<div><dt>{name}</dt><dd>{escape(value)} <small>{escape(note)}</small></dd></div>"
            for name, value, note in facts(rows, plan.recipe.epochs, run.device)
        ),
    }


def facts(rows: Sequence[Row], epochs: int, device: str) -> Iterator[tuple[str, str, str]]:
    """Names and values of the state of a run, each with a note."""
    if not rows:
        yield "Epoch", f"0 of {epochs}", "training has begun"
        return
    last, best = rows[-1], best_row(rows)
    left = last.seconds / last.epoch * (epochs - last.epoch)
    yield "Epoch", f"{last.epoch} of {epochs}", f"about {duration(left)} left" if last.epoch < epochs else "complete"
    if best is not None:
        yield "Best top-1", f"{best.best_top1:.1%}", f"epoch {best.epoch}{_kind(best)}"
    yield "Time", duration(last.seconds), ""
    yield "Speed", f"{last.images_per_second:.3g}", "images per second"
    yield from (("Memory", size, what) for size, what in memory_in_use(device))


def _kind(best: Row) -> str:
    """Whose accuracy the best one is, if the run averages its weights."""
    if best.ema_top1 is None:
        return ""
    return ", averaged weights" if best.ema_top1 >= (best.top1 or 0) else ", weights without averaging"


def links(run: Run) -> dict[str, str]:
    """Links to the reports and files of the run that exist."""
    reports = {report.name: f"a report on image {i}" for i, report in enumerate(run.reports, 1)}
    there = {**reports, **{name: what for name, what in FILES.items() if (run.path / name).is_file()}}
    first = ", ".join(f'<a href="{quote(name)}">image {i}</a>' for i, name in enumerate(reports, 1))
    return {
        "reports": f"<p>Reports on validation images: {first}.</p>" if reports else "",
        "files": "\n".join(
            f'<li><a href="{quote(name)}">{escape(name)}</a> <small>{what}</small></li>' for name, what in there.items()
        ),
    }


def _charts(panels: Sequence[Panel], from_zero: bool = False) -> str:
    return "\n".join(curves({panel.title: panel.lines}, "epoch", [panel.y], from_zero) for panel in panels)


def learning(rows: Sequence[Row]) -> str:
    return _charts(learning_panels(rows)) if rows else "<p>The curves begin with the end of the first epoch.</p>"


def throughput(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    speed, waiting = {"": line(rows, "images_per_second")}, {"": line(rows, "waiting", 100)}
    panels = [Panel("Throughput", "images per second", speed), Panel("Waiting for images", "time in %", waiting)]
    return _charts(panels, from_zero=True)


def confusion(evaluation: Evaluation | None, classes: Sequence[str], averaged: bool) -> str:
    """A matrix or, with many classes, a list of the pairs that are confused most."""
    if evaluation is None:
        return "<p>No epoch has been evaluated yet.</p>"
    total, correct = evaluation.totals.sum(), evaluation.correct.sum()
    sentence = (
        f"After epoch {evaluation.epoch}, the {'averaged ' * averaged}weights classified {correct:,} of {total:,} "
        f"validation images correctly ({correct / max(1, total):.1%})."
    )
    matrix = evaluation.matrix
    return f"<p>{sentence}{_pairs(evaluation, classes) if matrix is None else _matrix(matrix, classes)}"


def _matrix(matrix: np.ndarray, classes: Sequence[str]) -> str:
    names = [text(name, 40) for name in classes]
    lines = [" Rows are true classes and columns are predicted classes; colours show the share of the row. Mistakes "
             "are orange.</p>",
             '<div class="scroll" tabindex="0" role="region" aria-label="Confusion matrix">',
             '<table class="confusion">',
             '<thead><tr><th scope="col">true class</th>',
             *(f'<th scope="col"><span>{name}</span></th>' for name in names), "</tr></thead>", "<tbody>"]  # fmt: skip
    for i, row in enumerate(matrix):
        cells = "".join(_cell(count, count / max(1, row.sum()), i == j) for j, count in enumerate(row.tolist()))
        lines.append(f'<tr><th scope="row">{names[i]}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def _cell(count: int, share: float, diagonal: bool) -> str:
    kind = "hit" if diagonal else "miss"
    return f'<td class="{kind}" style="--share: {share:.3f}">{count}</td>' if count else "<td></td>"


def _pairs(evaluation: Evaluation, classes: Sequence[str]) -> str:
    if not len(evaluation.cells):
        return "</p>"
    lines = [" These classes are confused most often.</p>",
             '<div class="scroll" tabindex="0" role="region" aria-label="Confused classes">', '<table class="pairs">',
             '<thead><tr><th scope="col">true class</th><th scope="col">predicted as</th><th scope="col">images</th>'
             '<th scope="col">share of the class</th></tr></thead>', "<tbody>"]  # fmt: skip
    for true, predicted, count in evaluation.cells.tolist():
        share = f"{count / max(1, int(evaluation.totals[true])):.1%}"
        names = f'<th scope="row">{text(classes[true])}</th><th scope="row">{text(classes[predicted])}</th>'
        lines.append(f"<tr>{names}<td>{count}</td><td>{share}</td></tr>")
    return "\n".join([*lines, "</tbody>", "</table>", "</div>"])


def mistakes(
    evaluation: Evaluation | None, shown: Mapping[int, str], images: Dataset, classes: Sequence[str], averaged: bool
) -> str:
    """Wrong predictions with the highest probabilities, with their images, if those can be read."""
    if evaluation is None:
        return "<p>No epoch has been evaluated yet.</p>"
    if not len(evaluation.worst):
        whose = "averaged weights" if averaged else "model"
        return f"<p>None: the {whose} classified every validation image correctly.</p>"
    beside = ", each beside its attention map" if len(evaluation.maps) else ""
    lines = [f"<p>Wrong predictions{_by(averaged)} with the highest probabilities{beside}.</p>",
             '<div class="pairs-of-images">']  # fmt: skip
    for number, url in shown.items():
        position, true, predicted = evaluation.worst[number].tolist()
        path, name = _image_name(images, position), text(classes[true])
        lines.append(
            f"{_pair(url, f'{text(path)}, class {name}', bool(len(evaluation.maps)))}<figcaption>"
            f'<b class="wrong">{text(classes[predicted])}</b> {evaluation.probabilities[number]:.1%}'
            f'<span>true class: <b>{name}</b></span><span title="{text(path)}">{text(Path(path).name)}</span>'
            "</figcaption></figure>"
        )
    return "\n".join([*lines, "</div>"])


def _by(averaged: bool) -> str:
    return " by the averaged weights" if averaged else ""


def _image_name(images: Dataset, position: int) -> str:
    if isinstance(files := unwrapped(images), ImageFolder):
        return files.samples[position][0].relative_to(files.root).as_posix()
    return f"image {position}"


def _pair(url: str, alt: str, has_map: bool) -> str:
    """The start of a figure: an image and, beside it, a map over it, which the script draws."""
    plain = f'<div class="map plain" role="img" aria-label="{alt}"></div>'
    looked = f'<div class="map" role="img" aria-label="Attention over {alt}"><canvas></canvas></div>' if has_map else ""
    return f'<figure style="--image: url({url})"><div class="pair">{plain}{looked}</div>'


def film(film: Film, urls: Sequence[str], classes: Sequence[str], averaged: bool) -> str:
    """The section of the film; empty if there is none."""
    if not film.frames:
        return ""
    last, every = len(film.frames) - 1, "epoch" if film.stride == 1 else f"{film.stride} epochs"
    lines = [
        '<section aria-labelledby="h-film" id="film">', '<h2 id="h-film">Where it looks, epoch by epoch</h2>',
        f"<p>Maps{_by(averaged)} of the same validation images after every {every}, each on a scale of its own. "
        "Epoch 0 is before training. The arrow keys move from frame to frame.</p>",
        '<div class="controls"><button type="button" id="play">Play</button>',
        f'<label>Epoch <input type="range" id="frame" min="0" max="{last}" value="{last}"></label>',
        '<output id="epoch" for="frame"></output>',
        '<span class="legend"><span>min</span><span class="scale"></span><span>max</span></span></div>',
        '<p id="film-status" class="small" aria-live="polite"></p>', '<div class="pairs-of-images">',
    ]  # fmt: skip
    for url, chosen in zip(urls, film.images, strict=True):
        name = text(classes[chosen.label])
        lines.append(
            f'{_pair(url, f"a validation image of class {name}", True)}<figcaption><b class="guess"></b> '
            f'<span class="verdict"></span><span>true class: <b>{name}</b></span></figcaption></figure>'
        )
    return "\n".join([*lines, "</div>", "</section>"])


def settings(run: Run) -> str:
    """The settings that matter most in a sentence, and all of them as a table."""
    plan = asdict(run.plan)
    recipe, data = plan.pop("recipe"), plan.pop("data")
    groups: dict[str, dict[str, Any]] = {
        "plan": plan, "data": data, "recipe": recipe, "augmentation": recipe.pop("augmentation"),
    }  # fmt: skip
    main = ", ".join(f"{key} {value}" for key, value in main_settings(run.plan.recipe).items())
    lines = [f"<p>{text(main, 2000)}</p>", "<details><summary>All settings</summary>",
             '<div class="scroll" tabindex="0" role="region" aria-label="All settings">',
             '<table class="settings">']  # fmt: skip
    for group, values in groups.items():
        lines.append(f'<tbody><tr><th scope="rowgroup" colspan="2">{group}</th></tr>')
        shown = {key: "none" if value is None else value for key, value in values.items()}
        lines += [f'<tr><th scope="row">{key}</th><td>{text(value)}</td></tr>' for key, value in shown.items()]
        lines.append("</tbody>")
    return "\n".join([*lines, "</table>", "</div>", "</details>"])
