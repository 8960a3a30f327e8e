"""minicait retrieve: search the training images of a dataset for those most similar to others."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from ..data.crops import centre_crop
from ..data.device_loader import on_device
from ..data.groups import fine_classes, fine_labels, unwrapped
from ..data.loader import Loader
from ..data.picture import Picture
from ..data.source import Source
from ..data.transforms import evaluation
from ..explain.neighbours import Shown, neighbours_sheet
from ..files.atomic import check_destination
from ..files.pretrained import load_model, outputs_for
from ..files.weights import Info
from ..models import Model
from ..run.advice import evaluation_memory, memory_advice
from ..run.pictures import write_picture
from ..text import printable
from ..train.evaluate import NOT_FINITE
from ..train.retrieval import (
    Embedded,
    RetrievalScores,
    embed_batches,
    log_odds,
    neighbour_odds,
    ranked,
    retrieval_scores,
    spread,
)
from . import options
from .predict import as_text, image_files

EXAMPLES = """examples:
  minicait retrieve --weights best.safetensors --data photos                 mAP and accuracy on validation images
  minicait retrieve --weights best.safetensors --data photos cat.jpg         the training images most similar to cat.jpg
  minicait retrieve --weights best.safetensors --data path/to/cifar10 --groups cifar10 --json
"""
ABOUT = """Search the training images of a dataset for those most similar to its validation images, or to given images.
Images are compared by the embedding of a Grafit, or by the features of any other model. A found image is right if it
has the same fine label: the class inside a group of --groups, or the folder inside a class."""
BATCH, SHOWN = 64, 8  # images at a time, and rows of the picture
LARGEST = 224  # side in pixels of an image on it, before it is scaled
FORMATS = (".png", ".jpg", ".jpeg")
UNKNOWN = "unknown"


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "retrieve", _retrieve, "find similar images", EXAMPLES, ABOUT)
    add = parser.add_argument
    add("images", nargs="*", type=Path, metavar="IMAGE", help="files, or folders of them (default: validation images)")
    options.add_weights(parser)
    data = parser.add_argument_group("data")
    options.add_data(data, Source.val_fraction)
    data.add_argument("--train-images", type=int, metavar="N", help="search at most N training images (default: all)")
    add("--seed", type=int, default=0, help="random seed of shapes (default: %(default)s)")
    add("--neighbours", type=int, default=8, metavar="N", help="shown for each image (default: %(default)s)")
    add("--out", type=Path, default=Path("neighbours.png"), metavar="FILE",
        help="the picture, .png or .jpg (default: %(default)s)")  # fmt: skip
    options.add_machine(parser.add_argument_group("machine"))
    add("--json", action="store_true", help="print JSON")


def _retrieve(args: argparse.Namespace) -> int:
    options.check_positive(args, "neighbours", "train_images")
    device = options.device(args)
    if args.out.suffix.lower() not in FORMATS:
        raise ValueError(f"--out must be a file whose name ends in {', '.join(FORMATS)}, got {args.out}")
    check_destination(args.out)
    paths = list(image_files(args.images))
    model, info = load_model(args.weights, args.img_size)
    source = options.source(args, train_images=args.train_images)
    train, val, *_ = source.open(model.img_size[0], args.seed, info.crop_ratio)
    with memory_advice(device, evaluation_memory(model, BATCH, args.micro_batch), "a smaller --img-size"):
        collection = _embedded(args, model.to(device), info, train)
        queries = _embedded(args, model, info, Files(paths) if paths else val)
    mean_cosine, deviation = spread(collection.images.vectors)
    summary: dict[str, Any] = {
        "collection": len(collection.fine), "queries": len(queries.fine), "mean_cosine": mean_cosine,
        "spread": deviation, "picture": as_text(args.out),
    }  # fmt: skip
    if paths:
        shown = range(len(queries.fine))
    else:
        shown = range(0, len(queries.fine), max(1, len(queries.fine) // SHOWN))[:SHOWN]
        summary |= _scores(args, model, info, collection, queries)._asdict()
        summary |= {"coarse_classes": len(train.classes), "fine_classes": len(set(collection.fine))}
        summary["finer"] = fine_classes(train) != list(train.classes)
    rows = [_found(collection, queries.images.vectors[i], args.neighbours) for i in shown]
    pictures = [(_shown(queries, i), [_shown(collection, j, None if paths else _grade(collection, j, queries, i))
                                      for j, _ in row]) for i, row in zip(shown, rows, strict=True)]  # fmt: skip
    write_picture(args.out, neighbours_sheet(pictures))
    if paths:
        summary["results"] = [_result(collection, queries, i, row) for i, row in zip(shown, rows, strict=True)]
    print(json.dumps(summary, indent=1, allow_nan=False) if args.json else "\n".join(_lines(summary)))
    return 0


class Searched(NamedTuple):
    """A dataset, its embedded images, and the name of the fine class of each of these."""

    dataset: Any
    images: Embedded
    fine: list[str]


class Files:
    """A dataset of given images, whose classes are not known."""

    classes = fine_classes = (UNKNOWN,)

    def __init__(self, paths: list[Path]) -> None:
        self.samples = [(path, 0) for path in paths]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Picture, int]:
        return Picture(self.samples[index][0]), 0

    def fine(self, index: int) -> int:
        return 0


def _embedded(args: argparse.Namespace, model: Model, info: Info, dataset: Any) -> Searched:
    transform = evaluation(model.img_size[0], info.crop_ratio, info.mean, info.std)
    loader = Loader(dataset, BATCH, False, args.seed, transform, 1, args.threads, args.skip_bad_images, numbered=True)
    with on_device(loader, model.device) as there:
        images = embed_batches(model, tqdm(there, disable=None, unit="batch"), args.threads, args.micro_batch)
    if not np.isfinite(images.vectors).all():
        raise ValueError(NOT_FINITE)
    for reason in loader.bad.values():
        print(f"skipped: {printable(reason)}", file=sys.stderr)
    names, fine = fine_labels(dataset)
    return Searched(dataset, images, [names[i] for i in fine[images.samples]])


def _scores(
    args: argparse.Namespace, model: Model, info: Info, collection: Searched, queries: Searched
) -> RetrievalScores:
    """Search for all queries. The coarse class is predicted by neighbours, or by a head that has these classes."""
    classes, odds = collection.dataset.classes, None
    if model.has_memory:
        odds = neighbour_odds(collection.images, queries.images, len(classes), args.threads)
    elif queries.images.logits is not None:
        with suppress(ValueError):  # other classes
            odds = log_odds(queries.images.logits[:, outputs_for(classes, info, model.num_classes)])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(collection.fine))}
    fine, wanted = (np.array([numbers.get(name, -1) for name in own.fine]) for own in (collection, queries))
    return retrieval_scores(collection.images, queries.images, fine, wanted, odds, args.threads)


def _found(collection: Searched, vector: np.ndarray, count: int) -> list[tuple[int, float]]:
    """The nearest images of the collection, and their cosines."""
    cos = collection.images.vectors @ vector
    return [(int(i), float(cos[i])) for i in ranked(cos[None])[0, :count]]


def _grade(collection: Searched, j: int, queries: Searched, i: int) -> str:
    if collection.fine[j] == queries.fine[i]:
        return "same"
    return "same class" if collection.images.labels[j] == queries.images.labels[i] else "other"


def _shown(searched: Searched, i: int, grade: str | None = None) -> Shown:
    image = searched.dataset[int(searched.images.samples[i])][0]
    picture = image.decode() if isinstance(image, Picture) else Image.fromarray(image)
    name = searched.fine[i] if searched.fine[i] is not UNKNOWN else Path(_path(searched, i)).name
    square = centre_crop(picture, min(min(picture.size), LARGEST))
    return Shown(square, printable(name), grade)


def _path(searched: Searched, i: int) -> str:
    """The file of an image, or its number where it is drawn."""
    files, number = unwrapped(searched.dataset), int(searched.images.samples[i])
    return as_text(files.samples[number][0]) if hasattr(files, "samples") else f"image {number}"


def _result(collection: Searched, queries: Searched, i: int, row: list[tuple[int, float]]) -> dict[str, Any]:
    found = [{"image": _path(collection, j), "class": as_text(collection.fine[j]), "cosine": round(cos, 6)}
             for j, cos in row]  # fmt: skip
    return {"file": _path(queries, i), "neighbours": found}


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    yield f"{summary['collection']:,} training images searched for {summary['queries']:,} images"
    yield f"mean cosine of two images {summary['mean_cosine']:.2f}, spread {summary['spread']:.2f} (collapsed: 1 and 0)"
    for result in summary.get("results", []):
        yield printable(result["file"])
        yield from (f"  {n['cosine']:6.3f}  {printable(n['class'])}  {printable(n['image'])}"
                    for n in result["neighbours"])  # fmt: skip
    if "map_cos" in summary:
        if summary["compared"] < summary["queries"]:
            left_out = summary["queries"] - summary["compared"]
            yield f"{left_out:,} images do not count: no training image has their fine class"
        if not summary["finer"]:
            yield "these images have no finer labels than their classes; --groups makes coarser ones"
        conditioned = summary["map_conditioned"]
        ranks = {"by cosine": summary["map_cos"], "conditioned on the predicted class": conditioned,
                 "with the class known": summary["map_oracle"]}  # fmt: skip
        known = ", ".join(f"{value:.1%} {name}" for name, value in ranks.items() if value is not None)
        yield f"mAP of {summary['fine_classes']} fine classes: {known}"
        knn = ", ".join(f"k={k}: {value:.1%}" for k, value in summary["knn"].items())
        yield f"fine top-1 by a vote of the nearest k images: {knn}"
        if summary["coarse"] is not None:
            yield f"coarse top-1: {summary['coarse']:.1%} of {summary['coarse_classes']} classes"
    yield printable(f"see {summary['picture']}")
