"""backward() and grad(): the chain rule over a recorded graph, without recursion.

A node may run only when the gradients of all its consumers have arrived: in a diamond, running the shared node once per
path would repeat all the work below it for every path. So nodes are visited in reverse topological order, found by
counting consumers. Intermediate gradients live in a dict; only leaves get a `.grad`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from . import anomaly, modes
from .backend import Array, array_module, as_array, constant, device_of, is_array, on_device_of
from .function import PLAIN, Context
from .kernels.gather import can_gather, gather
from .tensor import Tensor

Target = Context | Tensor  # where a gradient goes: the operation that produced the value, or the leaf


def backward(output: Tensor, grad: Any = None, retain_graph: bool = False, create_graph: bool = False) -> None:
    """Accumulate d(output)/d(leaf) into the `.grad` of every leaf that requires grad."""
    _refuse_second_order(create_graph)
    for leaf, gradient in _run(output, grad, retain_graph, None, {}, accumulate=False):
        assert isinstance(leaf, Tensor)
        leaf.grad = Tensor(gradient if leaf.grad is None else as_array(on_device_of(leaf.grad.data) + gradient))


def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    grad_output: Any = None,
    retain_graph: bool = False,
    create_graph: bool = False,
    out: Sequence[Array] | None = None,
    accumulate: bool = False,
) -> list[Tensor | None]:
    """Return d(output)/d(input) for each input, None where the output does not depend on it.

    Inputs may be leaves or intermediate values. No `.grad` is touched, so threads that share parameters can call this
    concurrently. With `out`, one array per input (leaves only), gradients go into these arrays, as soon as they are
    known, instead of taking memory of their own until the end; on a GPU they go there at the end, in one launch. With
    `accumulate` each is added to what is there, once, when it is complete.
    """
    _refuse_second_order(create_graph)
    if not isinstance(output, Tensor):
        raise TypeError(f"grad: output must be a Tensor, got {type(output).__name__}")
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for i, x in enumerate(inputs):
        if not isinstance(x, Tensor) or not x.requires_grad:
            raise RuntimeError(f"grad: input {i} does not require grad; make it with Tensor(array, requires_grad=True)")
    targets = [_target(x) for x in inputs]
    outs = _outs(inputs, out)
    reached = _run(output, grad_output, retain_graph, targets, outs, accumulate)
    found = {id(target): gradient for target, gradient in reached}
    results: list[Tensor | None] = []
    seen: set[int] = set()
    for target in targets:
        gradient = found.get(id(target))
        if gradient is not None and id(target) in seen:
            gradient = on_device_of(gradient).copy()  # requested twice: two Tensors must not share one array
        seen.add(id(target))
        results.append(None if gradient is None else _tensor(gradient))
    return results


def _tensor(gradient: Array) -> Tensor:
    """Tensor(gradient) without its checks: a model has hundreds of gradients."""
    result = Tensor.__new__(Tensor)
    result.data, result.grad, result.node, result._requires_grad = gradient, None, None, False
    return result


class _Accumulator:
    """Gradients accumulated so far, by the id of their target.

    `owned` are the arrays that nobody else references: only those are added to in place, or returned without a copy.
    `outs` are arrays supplied by the caller.
    """

    def __init__(self, root: Target, gradient: Array, outs: dict[int, Array], accumulate: bool) -> None:
        self.outs, self.accumulate = outs, accumulate
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
            if (out := self.outs.get(key)) is not None:
                if self.accumulate:
                    out += gradient
                else:
                    out[...] = gradient
                gradient, shared = out, False
            self.arrays[key] = gradient
            if not shared:
                self.owned.add(key)
            if isinstance(target, Tensor):
                self.leaves.append(target)

    def result(self, target: Target) -> Array:
        gradient = self.arrays[id(target)]
        return gradient if id(target) in self.owned else on_device_of(gradient).copy()


def _outs(inputs: list[Tensor], out: Sequence[Array] | None) -> dict[int, Array]:
    """Check the arrays supplied for the gradients, and return them by the id of their input."""
    if out is None:
        return {}
    if len({id(x) for x in inputs}) < len(inputs):
        raise ValueError("grad: with out, each input may appear only once")
    for i, (x, array) in enumerate(zip(inputs, out, strict=True)):
        if x.node is not None:
            raise ValueError(f"grad: out works for leaves only, but input {i} is the result of an operation")
        if array.shape != x.shape or array.dtype != x.dtype:
            raise ValueError(
                f"grad: out[{i}] must be {x.shape} {x.dtype} like its input, got {array.shape} {array.dtype}"
            )
    return {id(x): array for x, array in zip(inputs, out, strict=True)}


def _run(
    output: Tensor, grad: Any, retain: bool, targets: list[Target] | None, outs: dict[int, Array], accumulate: bool
) -> list[tuple[Target, Array]]:
    """Gradients of the targets that were reached, or of all leaves. The caller owns the arrays."""
    root = _target(output)
    nodes = list(_consumers_first(root))
    # a gradient that arrives in several parts is added up on its own, or the sum would depend on what was there
    on_gpu = any(not isinstance(out, np.ndarray) for out in outs.values())
    later = outs if on_gpu else _used_twice(nodes, outs) if accumulate else {}
    direct = {key: out for key, out in outs.items() if key not in later}
    gradients = _Accumulator(root, _seed_gradient(output, grad), direct, accumulate)
    requested = None if targets is None else {id(target): target for target in targets}
    required = None if requested is None else _dependents(nodes, requested)
    for node in nodes:
        if required is None or id(node) in required:
            _visit(node, gradients, requested)
            if not retain:
                node.free()
    _put({key: out for key, out in later.items() if key in gradients.arrays}, gradients, accumulate)
    reported = gradients.leaves if requested is None else requested.values()
    return [(target, gradients.result(target)) for target in reported if id(target) in gradients.arrays]


def _put(outs: dict[int, Array], gradients: _Accumulator, accumulate: bool) -> None:
    """Copy or add complete gradients to the arrays supplied for them: on a GPU all of a dtype in one launch."""
    found = [(gradients.arrays[key], out) for key, out in outs.items()]
    for dtype in {out.dtype for _, out in found if can_gather(out)}:
        arrays, together = zip(*((a, out) for a, out in found if can_gather(out) and out.dtype == dtype), strict=True)
        gather(arrays, together, accumulate)
    for gradient, out in found:
        if not can_gather(out):
            out[...] = out + gradient if accumulate else gradient
    gradients.arrays |= outs
    gradients.owned |= outs.keys()


def _used_twice(nodes: list[Context], outs: dict[int, Array]) -> dict[int, Array]:
    """Those of `outs` whose leaf is used by more than one operation, or more than once."""
    uses = Counter(id(parent) for node in nodes for parent in node.parents or [] if isinstance(parent, Tensor))
    return {key: out for key, out in outs.items() if uses[key] > 1}


def _visit(node: Context, gradients: _Accumulator, requested: dict[int, Target] | None) -> None:
    """Run one backward and accumulate its gradients. A separate function, so that its arrays are freed on return."""
    if requested is not None and id(node) in requested:
        g = gradients.arrays.get(id(node))  # complete, and kept for the caller
        gradients.owned.discard(id(node))  # but backward may return it unchanged
    else:
        g = gradients.arrays.pop(id(node), None)
    if g is None:  # every consumer returned None for it
        return
    results = _call_backward(node, g)
    for result in results:
        shared = _is_shared(result)  # asked first: `gradient` is one more reference
        parent, gradient = result
        if requested is None or isinstance(parent, Context) or id(parent) in requested:
            gradients.add(parent, gradient, shared)


def _is_shared(result: tuple[Target, Array]) -> bool:
    """True if anything else references the gradient: another input, saved values, a cache, or a view of it.

    Alone, it has two references: from the tuple, and from the call that counts them.
    """
    return result[1].base is not None or sys.getrefcount(result[1]) > 2


def _call_backward(node: Context, g: Array) -> list[tuple[Target, Array]]:
    """Run the backward of a node and return its checked gradients, each with its target."""
    if node.restore is not None:
        node.saved, node.restore = node.restore(), None
    name = node.function.name
    if node.trace is not None:
        node.trace.check_saved(name, node.saved)
    try:
        results = node.function.backward(node, on_device_of(g))
    except Exception as error:
        error.add_note(f"(in the backward of {name}, whose output has shape {node.shape})")
        raise
    if results is None:
        raise RuntimeError(
            f"{name}: backward returned None (a forgotten return?); expected a gradient per Tensor, or (None,) for no "
            "gradient"
        )
    if isinstance(results, list):
        raise RuntimeError(f"{name}: backward must return an array or a tuple of arrays, got a list")
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
        where = node.trace.where if node.trace is not None else "(unknown: forward ran outside detect_anomaly)"
        anomaly.check_backward(name, g, [gradient for _, gradient in gradients], where)
    return gradients


def _checked(name: str, i: int, gradient: Any, target: Target) -> Array:
    """Check that a gradient has the shape, dtype and device of its input, and name the operation if it does not."""
    fits = type(gradient) is np.ndarray and gradient.shape == target.shape and gradient.dtype is target.dtype
    if fits and target.device == "cpu":  # nearly always
        return gradient
    if isinstance(gradient, Tensor):
        raise RuntimeError(f"{name}: backward must return arrays, got a Tensor for gradient {i}")
    if not is_array(gradient):
        gradient = as_array(gradient)  # arithmetic on 0-d arrays returns NumPy scalars
    if gradient.shape != target.shape or gradient.dtype != target.dtype or device_of(gradient) != target.device:
        raise RuntimeError(
            f"{name}: gradient {i} must be {target.shape} {target.dtype} on {target.device} like its input, "
            f"got {gradient.shape} {gradient.dtype} on {device_of(gradient)}"
        )
    return gradient


def _refuse_second_order(create_graph: bool) -> None:
    if create_graph:
        raise RuntimeError("create_graph: the engine computes first derivatives only and records no graph of them")


def _target(x: Tensor) -> Target:
    return x if x.node is None else x.node


def _seed_gradient(output: Tensor, grad: Any) -> Array:
    """The gradient that backward starts from: `grad`, or 1 for a scalar output."""
    if not output.requires_grad:
        raise RuntimeError(
            "backward: this Tensor depends on nothing that requires grad (gradients never do: the engine computes "
            "first derivatives only)"
        )
    if grad is None:
        if output.data.size != 1:
            raise RuntimeError(
                f"backward: a Tensor of shape {output.shape} needs a gradient of that shape, backward(grad); only a "
                "single value can start from 1"
            )
        return array_module(output.data).ones_like(output.data)
    grad = constant(grad.data if isinstance(grad, Tensor) else grad, like=output.data)
    if grad.shape != output.shape:
        raise ValueError(f"backward: the gradient must have the output's shape {output.shape}, got {grad.shape}")
    return grad.astype(output.dtype, copy=False)


def _consumers_first(root: Target) -> Iterator[Context]:
    """Yield the operations that `root` depends on in reverse topological order: each after all its consumers."""
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
            "pass retain_graph=True to that one, or run forward again"
        )
    return [parent for parent in node.parents if isinstance(parent, Context)]


def _dependents(nodes: list[Context], requested: dict[int, Target]) -> set[int]:
    """Ids of the nodes, given in reverse topological order, whose output depends on a requested target."""
    dependents: set[int] = set()
    for node in reversed(nodes):
        if any(id(parent) in requested or id(parent) in dependents for parent in node.parents or []):
            dependents.add(id(node))
    return dependents
