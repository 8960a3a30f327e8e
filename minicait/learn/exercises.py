"""The list of exercises, in the order of the chapters."""

from __future__ import annotations

from .exercise import Exercise

ENGINE = ("2.1", "2.2", "2.3", "3.1", "3.2")
BLOCK = (*ENGINE, "4.2", "4.3", "4.4", "6.3")
CAIT = (*BLOCK, "5.1", "5.2", "6.1", "6.2", "7.1", "8.1")
AGREES = "your engine and your CaiT compute what the project's do, logits and gradients"
LEARNS = "your CaiT has learned, with your engine, your optimiser and your training step"

EXERCISES = (
    Exercise("1.1", "numerical derivative", "by_hand.py", ("numerical_derivative",), 5),
    Exercise("1.2", "a neuron's gradient by hand", "by_hand.py", ("neuron_gradient",), 10),
    Exercise("2.1", "record a graph", "tensor.py", ("Function.apply", "Add", "Multiply"), 20),
    Exercise("2.2", "the order of backward", "tensor.py", ("consumers_first",), 20),
    Exercise("2.3", "backward through the graph", "tensor.py", ("Tensor.backward",), 20, ("2.2",)),
    Exercise("3.1", "unbroadcast", "tensor.py", ("unbroadcast",), 15, ("2.1",)),
    Exercise("3.2", "matmul and its gradient", "tensor.py", ("MatMul",), 15, ("3.1",)),
    Exercise("4.1", "a gradient check that catches mistakes", "checking.py", ("gradient_is_right",), 25),
    Exercise("4.2", "softmax backward", "layers.py", ("Softmax.backward",), 10),
    Exercise("4.3", "layer norm", "layers.py", ("LayerNorm",), 20),
    Exercise("4.4", "GELU", "layers.py", ("Gelu",), 10),
    Exercise("5.1", "patches by reshape", "patches.py", ("patches",), 10),
    Exercise("5.2", "patch embedding", "patches.py", ("patch_embed",), 10, (*ENGINE, "5.1")),
    Exercise("6.1", "multi-head attention", "attention.py", ("Attention.forward",), 15),
    Exercise("6.2", "its gradient", "attention.py", ("Attention.backward",), 25, ("6.1",)),
    Exercise("6.3", "talking heads", "attention.py", ("talking_heads",), 20, (*ENGINE, "4.2")),
    Exercise("7.1", "LayerScale block", "cait.py", ("self_attention_block",), 10, BLOCK),
    Exercise("7.2", "stochastic depth", "cait.py", ("drop_path",), 10, ("2.1", "2.2", "2.3", "3.1")),
    Exercise("8.1", "class attention", "attention.py", ("class_attention",), 10, (*ENGINE, "6.1", "6.2")),
    Exercise("8.2", "CaiT", "cait.py", ("class_attention_block", "cait"), 25, CAIT, milestone=AGREES),
    Exercise("9.1", "AdamW", "optim.py", ("adamw",), 10),
    Exercise("9.2", "warm-up and cosine", "optim.py", ("learning_rate",), 5),
    Exercise("10.1", "cross entropy with smoothing and its gradient", "loss.py", ("CrossEntropy",), 15),
    Exercise("10.2", "mixup and cutmix", "mixing.py", ("mixup", "cutmix"), 15),
    Exercise("11.1", "a training step with micro-batches", "training.py", ("loss_and_gradients",), 15, ENGINE),
    Exercise(
        "12.1", "your CaiT learns shapes", "training.py", ("train",), 20, (*CAIT, "8.2", "9.1", "9.2", "10.1", "11.1"),
        seconds=900.0, milestone=LEARNS,
    ),
    Exercise("22.1", "MixToken", "mixing.py", ("mix_token",), 10, ("2.1", "2.2", "2.3", "3.1")),
)  # fmt: skip
_BY_NUMBER = {exercise.number: exercise for exercise in EXERCISES}


def find(number: str) -> Exercise:
    """The exercise of this number; ValueError names what exists."""
    if (found := _BY_NUMBER.get(number)) is not None:
        return found
    chapter = [e.number for e in EXERCISES if e.number.split(".")[0] == number.split(".")[0]]
    hint = f"chapter {number.split('.')[0]} has {', '.join(chapter)}" if chapter else f"there are {_known()}"
    raise ValueError(f"there is no exercise {number!r}; {hint}")


def _known() -> str:
    """The numbers that exist: 1.1, 1.2, 2.1 ... in short."""
    last: dict[int, str] = {e.chapter: e.number for e in EXERCISES}
    return ", ".join(f"{c}.1" if number == f"{c}.1" else f"{c}.1 to {number}" for c, number in last.items())


def direct_needs(exercise: Exercise) -> list[str]:
    """The exercises that this one builds on directly, not through another."""
    implied = {number for need in exercise.needs for number in find(need).needs}
    return [number for number in exercise.needs if number not in implied]
