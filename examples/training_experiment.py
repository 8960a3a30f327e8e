"""Measure the ideas of the papers on training: small models on photographs, and a command for each idea.

    python examples/training_experiment.py --quick                          # some minutes with shapes, to see it work
    python examples/training_experiment.py --machine "two cores of a ..."   # docs/results/training.json, some hours
    python examples/training_experiment.py --only distillation --seeds 0,1  # one question, with two seeds

Imagenette at 64 pixels; all rows see the same number of images. A row is a `minicait train` that is printed, and can be
run by hand. What rows need comes first: a teacher (DeiT-Ti, fine-tuned at 96 pixels), and label maps by this teacher or
by the LV-ViT that learned the label of the image for every patch. After an interruption, the same command continues.
Rows that the file of results already has, with the same options and seed, are not measured again.

Every figure (top-1, that of each head, and retrieval, where `knn` has 20 neighbours) is from the weights after the last
epoch, because the best ones are selected on the same validation images. Teachers and annotators use their last weights,
too. Only `ema_top1` uses the averaged weights.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import autograd as ag
from minicait.cli.guard import guarded
from minicait.data import Loader, Source, evaluation
from minicait.experiments.compare import save
from minicait.files.pretrained import load_model, open_pretrained

MIXED = "--set mixup=0.8 --set cutmix=1"
PLAIN = "--set init=reference --set crop_ratio=1"
DEIT = f"--recipe small {PLAIN} {MIXED} --set rand_augment=9 --set erasing=0.25"
TOKENS = "--preset lvvit_mini --recipe small-tokens"
GRAFIT = "--recipe small-grafit --groups {groups}"
COMMAND = "python examples/training_experiment.py"
LAST = "weights/last.safetensors"
K = "20"  # neighbours that vote in retrieval


class Row(NamedTuple):
    question: str  # that names its folder
    name: str
    options: str  # of minicait train
    also: str = ""  # another question, for which it is the control


ROWS = [
    Row("distillation", "no teacher", f"--preset deit_mini {DEIT}", also="recipe"),
    Row("distillation", "soft", f"--preset deit_mini {DEIT} --teacher {{teacher}} --set distillation=soft "
        "--set distillation_weight=0.1 --set temperature=3"),
    Row("distillation", "hard", f"--preset deit_mini {DEIT} --teacher {{teacher}}"),
    Row("distillation", "hard, through the token", f"--preset deit_mini_distilled {DEIT} --teacher {{teacher}}"),
    Row("recipe", "LAMB, BCE, 3-Augment", f"--preset deit_mini --recipe small-deit3 {MIXED}"),
    Row("tokens", "class token alone", f"{TOKENS} --set token_weight=0"),
    Row("tokens", "label of the image for every patch", TOKENS),
    Row("tokens", "label maps by the LV-ViT above", f"{TOKENS} --token-labels {{own_labels}}"),
    Row("tokens", "label maps by the teacher", f"{TOKENS} --token-labels {{labels}}"),
    Row("grafit", "cross entropy", f"--preset deit_mini {GRAFIT} --set loss=cross_entropy"),
    Row("grafit", "neighbours", f"--preset grafit_deit_mini {GRAFIT} --set instance_weight=0 --set repeats=1"),
    Row("grafit", "neighbours and views", f"--preset grafit_deit_mini {GRAFIT}"),
]  # fmt: skip
TEACHER = Row("teacher", "DeiT-Ti", "--weights {weights} --img-size 96 --recipe transfer")
QUICK_TEACHER = Row("teacher", "DeiT", "--preset deit_mini --recipe shapes")
ANNOTATOR = next(row for row in ROWS if row.name.startswith("label of the image"))


class Experiment:
    """Rows of one seed: their commands, run in folders below `out`, and what they gave."""

    def __init__(self, args: argparse.Namespace, seed: int) -> None:
        self.seed, self.quick, self.epochs = seed, args.quick, args.epochs
        self.out = args.out / f"{'shapes' if args.quick else 'imagenette'}-{args.epochs}-epochs/seed-{seed}"
        self.images = "--data shapes --train-images 512" if args.quick else "--data imagenette"
        self.data = f"{self.images} {'--val-images 200' if args.quick else '--keep-side 96'}"
        self.names = {"weights": _quoted(args.weights), "groups": "shapes" if args.quick else "imagenette"}

    def measured(self, row: Row) -> dict[str, Any]:
        """Train a row, unless that is done, and measure it."""
        folder = self.trained(row, self.epochs)
        with (folder / "log.csv").open(encoding="utf-8") as file:
            epochs = list(csv.DictReader(file))
        result: dict[str, Any] = {"question": row.question, "row": row.name, "seed": self.seed}
        result |= {name: round(float(epochs[-1][name]), 3) for name in ("top1", "ema_top1", "seconds")}
        result["curve"] = [round(float(epoch["top1"]), 3) for epoch in epochs]
        if "distilled" in row.options or "lvvit" in row.options:
            result["heads"] = self.heads(folder / LAST)
        if row.question == "grafit":
            where = f"--seed {self.seed} --groups {self.names['groups']} --out {_quoted(folder)}/neighbours.png"
            found = _minicait(f"retrieve --weights {_quoted(folder / LAST)} {self.data} {where} --json")
            names = "map_cos", "map_conditioned", "map_oracle", "coarse", "mean_cosine", "spread"
            result |= {name: found[name] for name in names}
            result["knn"] = found["knn"][K]
        return {**result, "options": row.options}

    def trained(self, row: Row, epochs: int) -> Path:
        """The folder of a row's run, after its last epoch."""
        from_weights = any(name in row.options for name in ("{weights}", "{teacher}", "{labels}"))
        digest = _digest(row.options, self.names["weights"] if from_weights else "")  # other options, another run
        parent = self.out / row.question / f"{row.name.replace(' ', '-').replace(',', '')}-{digest}"
        if not (folders := sorted(parent.glob("*/checkpoint.safetensors"))):
            options = row.options.format(**self.needed(row))
            _minicait(f"train {options} {self.data} --epochs {epochs} --evaluate-every 1 --seed {self.seed} "
                      f"--out {_quoted(parent)}")  # fmt: skip
            return next(parent.glob("*/checkpoint.safetensors")).parent
        folder, log = folders[0].parent, folders[0].with_name("log.csv")
        if not log.is_file() or len(log.read_text(encoding="utf-8").splitlines()) <= epochs:
            _minicait(f"train --resume {_quoted(folder)}")
        return folder

    def needed(self, row: Row) -> dict[str, Any]:
        """Teachers and label maps that a row's options name, made first."""
        names = dict(self.names)
        if "{teacher}" in row.options or "{labels}" in row.options:
            teacher, epochs = (QUICK_TEACHER, 1) if self.quick else (TEACHER, 3)
            names["teacher"] = _quoted(self.trained(teacher, epochs) / LAST)
        if "{labels}" in row.options:
            names["labels"] = self.labelled("labels", f"{names['teacher']} --cells 5")
        if "{own_labels}" in row.options:
            names["own_labels"] = self.labelled("own-labels", _quoted(self.trained(ANNOTATOR, self.epochs) / LAST))
        return names

    def labelled(self, name: str, annotator: str) -> str:
        path = _quoted(self.out / f"{name}-{_digest(annotator)}.safetensors")
        _minicait(f"label-tokens --weights {annotator} {self.images} --seed {self.seed} --out {path}")
        return path

    def heads(self, weights: Path) -> dict[str, float]:
        """Accuracy of the class token's head, of the distillation token's, and as the model is evaluated."""
        model, info = load_model(weights)
        side = model.img_size[0]
        source = Source("shapes", val_images=200) if self.quick else Source("imagenette")
        right: Counter[str] = Counter()
        images = source.open(side, self.seed).val
        for batch in Loader(images, 64, transform=evaluation(side, info.crop_ratio)):
            with ag.no_grad():
                outputs = model.outputs(batch.images)
            evaluated = outputs.logits.numpy()
            heads = {"evaluated": evaluated}
            if outputs.distilled is not None:  # both heads were averaged
                heads["distillation"] = outputs.distilled.numpy()
                heads["class"] = 2 * evaluated - heads["distillation"]
            elif outputs.tokens is not None:  # half of the largest logits of the patches was added
                heads["class"] = evaluated - outputs.tokens.numpy().max(axis=1) / 2
            for name, logits in heads.items():
                right[name] += int((logits.argmax(1) == batch.labels).sum())
        return {name: round(count / len(images), 3) for name, count in right.items()}


def _digest(*texts: str) -> str:
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:8]


def _quoted(path: str | Path) -> str:
    return shlex.quote(str(path))


def _minicait(command: str) -> Any:
    """Run a command of minicait, and return what it prints if that is JSON."""
    print(f"\n$ minicait {command}", flush=True)
    output = subprocess.PIPE if "--json" in command else None
    words = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", "minicait", *words], stdout=output, encoding="utf-8", check=False)
    if done.returncode:
        raise ValueError(f"minicait {words[0]} ended with exit code {done.returncode}; its output is above")
    return json.loads(done.stdout) if output else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions = list(dict.fromkeys(row.question for row in ROWS))
    parser.add_argument("--only", choices=questions, help="one question (default: all)")
    parser.add_argument("--seeds", default="0", help="random seeds, such as 0,1 (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="(default: 12, or 2 with --quick)")
    parser.add_argument("--weights", default="deit_tiny_patch16_224",
                        help="of the teacher before fine-tuning: a name or a file (default: %(default)s)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="two epochs on shapes, with a teacher trained on them")
    parser.add_argument("--machine", default="", help="where this runs, for the file of results")
    parser.add_argument("--out", type=Path, default=Path("runs/training"), help="folder of runs (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="(default: docs/results/training.json, or none with --quick)")
    args = parser.parse_args()
    if not all(seed.isdecimal() for seed in args.seeds.split(",")):
        raise ValueError(f"--seeds must be numbers with commas between them, got {args.seeds!r}")
    if args.epochs is None:
        args.epochs = 2 if args.quick else 12
    if args.epochs < 1:
        raise ValueError(f"--epochs must be at least 1, got {args.epochs}")
    if not args.quick:
        open_pretrained(args.weights)  # downloads them now, or says what is wrong, and not after an hour
    path = args.results or (None if args.quick else Path("docs/results/training.json"))
    settings = {"epochs": args.epochs, "teacher": Path(args.weights).name.removesuffix(".safetensors")}
    results, machine = _saved(path, settings)
    for seed in map(int, args.seeds.split(",")):
        experiment = Experiment(args, seed)
        for row in ROWS:
            if args.only in (None, row.question, row.also) and (seed, *row[:3]) not in map(_key, results):
                results.append(experiment.measured(row))
                print(_line(results[-1]), flush=True)
                if path is not None:
                    seeds = ",".join(str(seed) for seed in sorted({result["seed"] for result in results}))
                    results.sort(key=_order)
                    save(path, f"{COMMAND} --seeds {seeds}", args.machine or machine, settings, results)
    print("\n" + "\n".join(map(_line, results)))
    return 0


def _saved(path: Path | None, settings: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Results so far of rows that are still the same, and the machine they are from."""
    if path is None or not path.is_file():
        return [], ""
    saved = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(saved, dict) or not {"settings", "results", "machine"} <= saved.keys():
        raise ValueError(f"{path} is not a file of results of this experiment; choose another with --results")
    if saved["settings"] != settings:
        raise ValueError(f"{path} has results of {saved['settings']}, not {settings}; choose another with --results")
    rows = {row[:3] for row in ROWS}
    return [result for result in saved["results"] if _key(result)[1:] in rows], saved["machine"]


def _key(result: dict[str, Any]) -> tuple[int, str, str, str]:
    return result["seed"], result["question"], result["row"], result["options"]


def _order(result: dict[str, Any]) -> tuple[int, int]:
    """Results by seed, and within a seed in the order of the rows."""
    return result["seed"], [row[:3] for row in ROWS].index(_key(result)[1:])


def _line(result: dict[str, Any]) -> str:
    more = f", mAP {result['map_cos']:.1%}, kNN {result['knn']:.1%}" if "map_cos" in result else ""
    more += "".join(f", {name}: {share:.1%}" for name, share in result.get("heads", {}).items())
    name = f"{result['question']}, {result['row']}, seed {result['seed']}"
    return f"{name:55s} top-1 {result['top1']:.1%} (EMA {result['ema_top1']:.1%}){more}; {result['seconds']:.0f} s"


if __name__ == "__main__":
    sys.exit(guarded(main, "training_experiment"))
