"""The page of a run, index.html: one file that needs no server and no network, written after every epoch.

The folder page/ has its HTML with {{placeholders}}, style and script; `sections` fills them. The film and the last
evaluation are kept in page.safetensors, so that the page of a resumed run continues where it was.
"""

from __future__ import annotations

import base64
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..data.loader import Dataset, readable_images
from ..data.picture import denormalise
from ..data.transforms import Transform
from ..explain.colours import CIVIDIS
from ..explain.templates import fill, gradient, image_url, page_file, script_data, script_hash, sharpness
from ..files.atomic import write_text
from ..files.tensorfile import open_tensors, write_tensors
from ..train.evaluate import Guesses
from . import sections
from .film import Film, Frame
from .mistakes import Evaluation, loaded, summary, with_maps

if TYPE_CHECKING:
    from .run import Run

PAGE, NUMBERS = "index.html", "page.safetensors"
MAX_NUMBERS = 20_000_000  # bytes of page.safetensors; a film has at most 600,000
DRAWING = "draw.js"  # a script of the reports


class Overview:
    """Content of the page beside the log: a film, and the last evaluation."""

    def __init__(self, val: Dataset, transform: Transform | None, epochs: int, grid: tuple[int, int]) -> None:
        self.val, self.transform, self.grid = val, transform, grid
        self.film = Film(val, transform, epochs, grid)
        self.evaluation: Evaluation | None = None
        self._urls: dict[int, str] = {}  # of validation images, by position

    def update(self, run: Run, guesses: Guesses | None = None) -> None:
        """Add what the run's weights show after an epoch, and its evaluation if there was one; write the page."""
        ema, epoch, machine = run.trainer.ema, run.trainer.epoch, (run.threads, run.micro_batch)
        with nullcontext() if ema is None else ema.applied():
            self.film.add(epoch, run.model, *machine)
            if guesses is not None:
                found = summary(epoch, guesses, len(run.classes), run.val_loader.bad, self.grid)
                self.evaluation = with_maps(found, run.model, self.val, self.transform, *machine)
        parts = {"film": self.film.arrays()}
        if self.evaluation is not None:
            parts["evaluation"] = self.evaluation.arrays()
        arrays = {f"{part}/{name}": array for part, own in parts.items() for name, array in own.items()}
        write_tensors(run.path / NUMBERS, arrays, {"minicait_page": __version__})
        self.write(run)

    def load(self, folder: Path, epoch: int) -> str | None:
        """Return to the state after an epoch; a file that does not fit is ignored, with a warning."""
        path = folder / NUMBERS
        if not path.is_file():
            return None
        try:
            if path.stat().st_size > MAX_NUMBERS:
                raise ValueError(f"it has more than {MAX_NUMBERS:,} bytes")
            file = open_tensors(path)
            arrays: dict[str, dict[str, np.ndarray]] = {"film": {}, "evaluation": {}}
            for name in file.entries:
                part, _, own = name.partition("/")
                arrays[part][own] = file.read(name)
            evaluation = arrays["evaluation"]
            self.film.load(arrays["film"])
            if evaluation and evaluation["epoch"] <= epoch:
                self.evaluation = loaded(evaluation, len(self.val), self.grid, len(self.val.classes))
        except (ValueError, KeyError, TypeError, OSError, IndexError) as error:
            self.film.frames, self.evaluation = [], None
            return f"{path} is damaged and was ignored ({error}); the film in {PAGE} begins anew"
        self.film.cut(epoch + 1)
        return None

    def write(self, run: Run) -> None:
        shown = self._mistakes()
        images = [self._url(chosen.position, chosen.image) for chosen in self.film.images] if self.film.frames else []
        (rows, columns), averaged = self.grid, run.trainer.ema is not None
        parts: dict[str, Any] = {
            **sections.headline(run),
            **sections.links(run),
            "curves": sections.learning(run.rows),
            "confusion": sections.confusion(self.evaluation, run.classes, averaged),
            "mistakes": sections.mistakes(self.evaluation, shown, self.val, run.classes, averaged),
            "film": sections.film(self.film, images, run.classes, averaged),
            "throughput": sections.throughput(run.rows),
            "settings": sections.settings(run),
            "version": __version__,
            "rows": rows,
            "columns": columns,
            "scale": gradient(CIVIDIS),
            "signed": "none",
            "sharpness": sharpness(run.model.img_size[0]),
            "numbers": script_data(self._numbers(run.classes, shown)),
            "script": "\n".join(["", page_file(DRAWING, "minicait.explain"), page_file("index.js", __package__)]),
        }
        parts["script_hash"] = script_hash(parts["script"])  # nothing else runs, and nothing is loaded or sent
        styles = page_file("base.css", "minicait.explain"), page_file("index.css", __package__)
        parts["style"] = "".join(fill(style, parts) for style in styles)
        write_text(run.path / PAGE, fill(page_file(PAGE, __package__), parts))

    def _mistakes(self) -> dict[int, str]:
        """Images of the worst mistakes, as data URLs, by their number among these."""
        if self.evaluation is None:
            return {}
        positions = self.evaluation.worst[:, 0].tolist()
        if new := [position for position in positions if position not in self._urls]:
            for position, image in readable_images(self.val, self.transform, new).items():
                self._url(position, image)
        kept = {*positions, *(chosen.position for chosen in self.film.images)}
        self._urls = {position: url for position, url in self._urls.items() if position in kept}
        return {number: self._urls[p] for number, p in enumerate(positions) if p in self._urls}

    def _url(self, position: int, image: np.ndarray) -> str:
        if position not in self._urls:
            self._urls[position] = image_url(denormalise(image))
        return self._urls[position]

    def _numbers(self, classes: list[str], shown: dict[int, str]) -> dict[str, Any]:
        """Collect the numbers for the script."""
        rows, columns = self.grid
        numbers: dict[str, Any] = {"rows": rows, "columns": columns, "scale": CIVIDIS.astype(int).tolist()}
        if self.evaluation is not None and len(self.evaluation.maps):
            numbers["mistakes"] = _text(self.evaluation.maps[list(shown)])
        if self.film.frames:
            columns_of = dict(zip(Frame._fields, zip(*self.film.frames, strict=True), strict=True))
            guesses = np.stack(columns_of["guesses"])
            numbers["film"] = {
                "epochs": list(columns_of["epoch"]),
                "last": self.film.epochs,
                "maps": _text(np.stack(columns_of["maps"])),
                "guesses": guesses.tolist(),
                "probabilities": np.stack(columns_of["probabilities"]).astype(float).round(3).tolist(),
                "labels": [chosen.label for chosen in self.film.images],
                "names": {int(i): sections.plain(classes[i]) for i in np.unique(guesses)},
            }
        return numbers


def _text(maps: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(maps).tobytes()).decode("ascii")
