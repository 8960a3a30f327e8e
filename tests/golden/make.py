"""Make the golden files anew from the reference implementation, in float64:

pip install -e '.[compare]' && python -m tests.golden.make
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict

import numpy as np
import torch
from timm.models.cait import Cait

from tests.golden.recipe import FOLDER, MODELS, batch, random_weights


def reference(config: dict) -> torch.nn.Module:
    """timm's CaiT of these sizes, with the golden weights."""
    model = Cait(
        img_size=config["img_size"],
        patch_size=config["patch_size"],
        num_classes=config["num_classes"],
        embed_dim=config["dim"],
        depth=config["depth"],
        num_heads=config["heads"],
        init_values=1.0,
    ).double()
    weights = random_weights({name: tuple(p.shape) for name, p in model.named_parameters()})
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model


def main() -> None:
    for name, config in MODELS.items():
        model = reference(config)
        images, labels = batch(config)
        logits = model(torch.from_numpy(images))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)).backward()
        arrays = {f"gradient/{key}": p.grad.numpy() for key, p in model.named_parameters()}
        arrays["logits"] = logits.detach().numpy()
        path = FOLDER / f"{name}.npz"
        np.savez_compressed(path, **{key: value.astype(np.float32) for key, value in arrays.items()})
        print(f"{path.name}: {len(arrays)} arrays, {path.stat().st_size:,} bytes")
    make_pth()
    make_operations()


def make_pth() -> None:
    """A training checkpoint as PyTorch writes it: names behind "module.", and things around that are not weights."""
    weights = {f"module.{name}": value.float() for name, value in reference(MODELS["deep"]).state_dict().items()}
    checkpoint = {
        "model": OrderedDict(weights),
        "model_ema": OrderedDict((name, value * 2) for name, value in weights.items() if "cls_token" in name),
        "optimizer": {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-3}]},
        "epoch": 3,
        "best": np.float64(0.5),
        "args": argparse.Namespace(model="cait", size=torch.Size([1, 2])),
        "odd": {
            "transposed": torch.arange(6.0).reshape(2, 3).T,
            "slice": torch.arange(10)[3:7:2],
            "half": torch.tensor([1.5, -2.0]).half(),
            "bfloat16": torch.tensor([1.5, -2.0]).bfloat16(),
            "empty": torch.zeros(0, 3),
            "scalar": torch.tensor(7.0),
            "parameter": torch.nn.Parameter(torch.ones(2)),
        },
    }
    torch.save(checkpoint, FOLDER / "deep.pth")


def make_operations() -> None:
    """Values and gradients of PyTorch's conv2d and batch_norm, for the inputs that the file already has."""
    with np.load(FOLDER / "operations.npz") as file:
        arrays = {name: file[name] for name in file.files}

    def run(case: str, names: str, results: str, function) -> None:
        inputs = {name: torch.tensor(arrays[f"{case}:{name}"], requires_grad=True) for name in names.split()}
        y = function(*inputs.values())
        gradients = torch.autograd.grad(y, [*inputs.values()], torch.from_numpy(arrays[f"{case}:g"]))
        arrays[f"{case}:y{results}"] = y.detach().numpy()
        arrays.update({f"{case}:grad_{n}{results}": g.numpy() for n, g in zip(inputs, gradients, strict=True)})

    for case in [name.removesuffix(":config") for name in arrays if name.endswith(":config")]:
        options = json.loads(str(arrays[f"{case}:config"]))
        names = "x w b" if f"{case}:b" in arrays else "x w"
        run(case, names, "", lambda *inputs, options=options: torch.nn.functional.conv2d(*inputs, **options))
    for case in ("bn2d", "bn1d"):
        for training in (False, True):
            running = [torch.tensor(arrays[f"{case}:running_{name}"]) for name in ("mean", "var")]
            run(
                case, "x weight bias", "_train" if training else "_eval",
                lambda x, w, b, running=running, training=training: torch.nn.functional.batch_norm(
                    x, *running, w, b, training
                ),
            )  # fmt: skip
        arrays |= {f"{case}:running_{n}_after": r.numpy() for n, r in zip(("mean", "var"), running, strict=True)}
    np.savez_compressed(FOLDER / "operations.npz", **arrays)


if __name__ == "__main__":
    main()
