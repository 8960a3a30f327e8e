"""The end of a run: pictures and reports of the best weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image
from tqdm import tqdm

from ..data.device_loader import on_device
from ..data.loader import Loader
from ..files.pretrained import load_model
from ..files.weights import Info, save_weights, with_origin
from ..models import Model
from ..train.evaluate import evaluate
from ..train.retrieval import embed_batches, spread
from .pictures import draw_attention, write_picture

if TYPE_CHECKING:
    from .run import Run


def after_training(run: Run) -> None:
    """Show what the best weights look at."""
    run.background.wait()  # loaders fork workers, which would wait for what another thread holds
    if run.shapes is not None:
        write_picture(run.path / "example.png", Image.fromarray(run.shapes[0][0]))
    model, info = load_model(run.best_weights)
    if model.has_memory:
        _refresh_memory(run, model, info)
    run.attention_at_end = run.attention_inside(model)
    weights = with_origin(run.best_weights.name, info.origin)
    run.reports = draw_attention(run.path, model, run.images.val, run.val_loader.transform, weights)
    run.overview.write(run)


def _refresh_memory(run: Run, model: Model, info: Info) -> None:
    """Embed all training images with the best weights: in training, each had those of the step that saw it."""
    crop, size = run.val_loader.transform, run.val_loader.batch_size
    loader = Loader(run.images.train, size, False, 0, crop, 1, run.threads, run.skip_bad, True)
    with on_device(loader, run.device) as images:
        found = embed_batches(model.to(run.device), images, run.threads, run.micro_batch)
    model.refresh(found.samples, found.labels, found.vectors)
    save_weights(model, run.best_weights, run.classes, crop_ratio=info.crop_ratio, origin=info.origin)
    with on_device(run.val_loader, run.device) as val_loader:
        scores = evaluate(model, val_loader, run.threads, run.micro_batch)
    tqdm.write(f"best weights, with the embeddings of all training images computed anew: top-1 {scores.top1:.1%}; "
               f"mean cosine of two images {spread(found.vectors)[0]:.2f} (1: collapsed)")  # fmt: skip
