"""backward() and grad(): the chain rule over a recorded graph, without recursion.

A node may run only when the gradients of all of its consumers have arrived: in a diamond, running the shared node once
per path would redo all the work below it for every path. So nodes are visited consumers first, by counting.
Gradients on the way live in a dict; only leaves are given a `.grad`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import anomaly, modes
from .backend import Array, array_module, as_array, constant, device_of, is_array, work_with
from .function import PLAIN, Context
from .tensor import Tensor

Target = Context | Tensor  # where a gradient goes: the operation that made the value, or the leaf itself


def backward(output: Tensor, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
    """Add d(output)/d(leaf) to the `.grad` of every leaf that requires it."""
    _refuse_second_order(create_graph)
    for leaf, gradient in _run(output, grad, retain_graph, None):
        assert isinstance(leaf, Tensor)
        leaf.grad = Tensor(gradient if leaf.grad is None else as_array(work_with(leaf.grad.data) + gradient))


def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    grad_output: Any = None,
    retain_graph: bool = False,
    create_graph: bool = False,
    out: Sequence[Array] | None = None,
    accumulate: bool = False,
) -> list[Tensor | None]:
    """d(output)/d(input) for each input, None where the output does not depend on it.

    Inputs may be leaves, or values in the middle of the graph. No `.grad` is touched, so threads that share parameters
    can call this at the same time. With `out`, an array for each input, which must be leaves then, the gradients are
    left in those arrays: each moves there as soon as it is known, instead of taking memory until the end. With
    `accumulate` it is added to what the array holds.
    """
    _refuse_second_order(create_graph)
    if not isinstance(output, Tensor):
        raise TypeError(f"grad: output must be a Tensor, got {type(output).__name__}")
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for i, x in enumerate(inputs):
        if not isinstance(x, Tensor) or not x.requires_grad:
            raise RuntimeError(f"grad: input {i} does not require grad; make it with Tensor(array, requires_grad=True)")
    targets = [_target(x) for x in inputs]
    places = _places(inputs, out)
    found = {
        id(target): gradient
        for target, gradient in _run(output, grad_output, retain_graph, targets, places, accumulate)
    }
    results: list[Tensor | None] = []
    seen: set[int] = set()
    for target in targets:
        gradient = found.get(id(target))
        if gradient is not None and id(target) in seen:
            gradient = work_with(gradient).copy()  # asked for twice: two Tensors must not share one array
        seen.add(id(target))
        results.append(None if gradient is None else Tensor(gradient))
    return results


class _Sums:
    """Gradients that have arrived so far, by where they go.

    `owned` are the arrays that nobody else holds: only those are added to in place, or given away without a copy.
    `places` are arrays that the caller gave for some of them.
    """

    def __init__(self, root: Target, gradient: Array, places: dict[int, Array], accumulate: bool) -> None:
        self.places, self.accumulate = places, accumulate
        self.arrays: dict[int, Array] = {}
        self.leaves: list[Tensor] = []
        self.owned: set[int] = set()
        self.add(root, gradient, shared=True)

    def add(self, target: Target, gradient: Array, shared: bool) -> None:
        key = id(target)
        if key in self.owned:
            self.arrays[key] += gradient
        elif key in self.arrays:
            self.arrays[key] = as_array(self.arrays[key] + gradient)
            self.owned.add(key)
        else:
            if (place := self.places.get(key)) is not None:
                if self.accumulate:
                    place += gradient
                else:
                    place[...] = gradient
                gradient, shared = place, False
            self.arrays[key] = gradient
            if not shared:
                self.owned.add(key)
            if isinstance(target, Tensor):
                self.leaves.append(target)

    def give(self, target: Target) -> Array:
        gradient = self.arrays[id(target)]
        return gradient if id(target) in self.owned else work_with(gradient).copy()


def _places(inputs: list[Tensor], out: Sequence[Array] | None) -> dict[int, Array]:
    """The arrays that were given for the gradients, by their inputs."""
    if out is None:
        return {}
    if len({id(x) for x in inputs}) < len(inputs):
        raise ValueError("grad: with out, each input can be given once only")
    for i, (x, place) in enumerate(zip(inputs, out, strict=True)):
        if x.node is not None:
            raise ValueError(f"grad: out is for leaves, and input {i} is the result of an operation")
        if place.shape != x.shape or place.dtype != x.dtype:
            raise ValueError(f"grad: out {i} must be {x.shape} {x.dtype} as its input, got {place.shape} {place.dtype}")
    return {id(x): place for x, place in zip(inputs, out, strict=True)}


def _run(
    output: Tensor,
    grad: Any,
    retain_graph: bool,
    targets: list[Target] | None,
    places: dict[int, Array] | None = None,
    accumulate: bool = False,
) -> list[tuple[Target, Array]]:
    """Gradients of the targets that were reached, or of all leaves; each array is the caller's own to keep."""
    root = _target(output)
    sums = _Sums(root, _first_gradient(output, grad), places or {}, accumulate)
    nodes = list(_consumers_first(root))
    asked = None if targets is None else {id(target): target for target in targets}
    useful = None if asked is None else _leading_to(nodes, asked)
    for node in nodes:
        if useful is None or id(node) in useful:
            _visit(node, sums, asked)
            if not retain_graph:
                node.free()
    wanted = sums.leaves if asked is None else asked.values()
    return [(target, sums.give(target)) for target in wanted if id(target) in sums.arrays]


def _visit(node: Context, sums: _Sums, asked: dict[int, Target] | None) -> None:
    """Run one backward and pass its gradients on. A function of its own, so that its arrays die when it returns."""
    if asked is not None and id(node) in asked:
        g = sums.arrays.get(id(node))  # complete now, and stays for the caller
        sums.owned.discard(id(node))  # but backward may pass it on as it is
    else:
        g = sums.arrays.pop(id(node), None)
    if g is None:  # all consumers said that their gradient is zero
        return
    gradients = _call_backward(node, g)
    for i, (parent, gradient) in enumerate(gradients):
        if asked is None or isinstance(parent, Context) or id(parent) in asked:
            others = [other for j, (_, other) in enumerate(gradients) if j != i]
            sums.add(parent, gradient, shared=_is_shared(gradient, [g, *node.saved, *others]))


def _is_shared(gradient: Array, others: list[Any]) -> bool:
    """Whether an array that backward returned may be held, or seen through a view, by somebody else."""
    if gradient.base is not None:
        return True
    return any(other is gradient or getattr(other, "base", None) is gradient for other in others)


def _call_backward(node: Context, g: Array) -> list[tuple[Target, Array]]:
    """The gradients that a node's backward makes, each checked, beside the target it is for."""
    if node.tape is not None:
        node.tape.restore(node)
    name = node.function.name
    if node.trace is not None:
        node.trace.check_saved(name, node.saved)
    try:
        results = node.function.backward(node, work_with(g))
    except Exception as error:
        error.add_note(f"(in the backward of {name}, whose output has shape {node.shape})")
        raise
    if not isinstance(results, tuple):
        results = (results,)
    parents = node.parents or []
    if len(results) != len(parents):
        parents = [parent for parent in parents if parent is not PLAIN]
    if len(results) != len(parents):
        raise RuntimeError(f"{name}: backward must return {len(parents)} gradients, one per Tensor, got {len(results)}")
    gradients = []
    for i, (parent, gradient) in enumerate(zip(parents, results, strict=True)):
        if gradient is not None and parent is not None and parent is not PLAIN:
            gradients.append((parent, _checked(name, i, gradient, parent)))
    if modes.current().anomaly:
        where = node.trace.where if node.trace is not None else "(outside of detect_anomaly, so the line is not known)"
        anomaly.check_backward(name, g, [gradient for _, gradient in gradients], where)
    return gradients


def _checked(name: str, i: int, gradient: Any, target: Target) -> Array:
    """Every gradient has its input's shape, dtype and device; a backward that breaks this is named at once."""
    if isinstance(gradient, Tensor):
        raise RuntimeError(f"{name}: backward must return arrays, got a Tensor for gradient {i}")
    if not is_array(gradient):
        gradient = as_array(gradient)  # arithmetic on 0-d arrays gives NumPy scalars
    if gradient.shape != target.shape or gradient.dtype != target.dtype or device_of(gradient) != target.device:
        raise RuntimeError(
            f"{name}: gradient {i} must be {target.shape} {target.dtype} on {target.device} like its input, "
            f"got {gradient.shape} {gradient.dtype} on {device_of(gradient)}"
        )
    return gradient


def _refuse_second_order(create_graph: bool) -> None:
    if create_graph:
        raise RuntimeError("create_graph: the engine computes first derivatives only, and records no graph of them")


def _target(x: Tensor) -> Target:
    return x if x.node is None else x.node


def _first_gradient(output: Tensor, grad: Any) -> Array:
    if not output.requires_grad:
        raise RuntimeError(
            "backward: this Tensor depends on nothing that requires grad (a gradient never does: the engine computes "
            "first derivatives only)"
        )
    if grad is None:
        if output.data.size != 1:
            raise RuntimeError(
                f"backward: a Tensor of shape {output.shape} needs a gradient of that shape, backward(grad); "
                "only a single number starts from 1"
            )
        return array_module(output.data).ones_like(output.data)
    grad = constant(grad.data if isinstance(grad, Tensor) else grad, like=output.data)
    if grad.shape != output.shape:
        raise ValueError(f"backward: the gradient must have the output's shape {output.shape}, got {grad.shape}")
    return grad.astype(output.dtype, copy=False)


def _consumers_first(root: Target) -> Iterator[Context]:
    """Every operation that `root` depends on, each after all the operations that use its result."""
    if isinstance(root, Tensor):
        return
    uses = {id(root): 0}
    stack = [root]
    while stack:
        for parent in _parents(stack.pop()):
            if id(parent) not in uses:
                uses[id(parent)] = 0
                stack.append(parent)
            uses[id(parent)] += 1
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        for parent in _parents(node):
            uses[id(parent)] -= 1
            if uses[id(parent)] == 0:
                stack.append(parent)


def _parents(node: Context) -> list[Context]:
    if node.parents is None:
        raise RuntimeError(
            f"backward: the graph behind this Tensor (from {node.function.name} on) was freed by an earlier backward; "
            "call that one with retain_graph=True, or run forward again"
        )
    return [parent for parent in node.parents if isinstance(parent, Context)]


def _leading_to(nodes: list[Context], asked: dict[int, Target]) -> set[int]:
    """Of the nodes in consumers-first order, those whose backward the asked-for targets depend on."""
    useful: set[int] = set()
    for node in reversed(nodes):
        if any(id(parent) in asked or id(parent) in useful for parent in node.parents or []):
            useful.add(id(node))
    return useful
