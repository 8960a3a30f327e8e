"""Typical mistakes, put into the answers: each is caught, and the sentence names the right place."""

import ast
import re
from typing import NamedTuple

import pytest

from minicait.learn import EXERCISES, find, grade
from tests.learn.folders import functions, places, write


class Mistake(NamedTuple):
    number: str
    old: str  # in the answer
    new: str
    words: str  # in the sentence


RECURSIVE = """    done, order = set(), []

    def visit(y):
        if y.node is None or y in done:
            return
        done.add(y)
        for x in y.node.inputs:
            visit(x)
        order.append(y)

    visit(output)
    return order[::-1]
    uses = {}"""
BY_SIZE = """    axes, sizes = [], [size for size in shape if size > 1]
    for axis, size in enumerate(g.shape):
        if sizes and size == sizes[0]:
            sizes.pop(0)
        else:
            axes.append(axis)
    return g.sum(axis=tuple(axes)).reshape(shape)
    added ="""
# number, old, new, words; the file is that of the exercise
# ruff: noqa: E501
MISTAKES = [
    Mistake("1.1", "(f(x + delta) - f(x - delta)) / (2 * delta)", "(f(x + delta) - f(x)) / delta",
            "f was called at -1.99999 and -2, expected -2.00001 and -1.99999 (case: f = sin, x = -2)"),
    Mistake("1.1", "/ (2 * delta)", "/ delta", "yours -0.832, expected -0.416; the distance of the two points is 2 delta (case"),
    Mistake("1.1", " / (2 * delta)", "", "; the distance of the two points is 2 delta (case"),
    Mistake("1.1", "return (f(x + delta)", "delta = 1e-4\n    return (f(x + delta)", "f was called at -1.9999 and -2.0001"),
    Mistake("1.2", "(1 - y * y)", "(1 - y)", "dL/dw is wrong: yours "),
    Mistake("1.2", " * (1 - y * y)", "", "; the factor 1 - y^2, from tanh, is missing (case"),
    Mistake("1.2", "return dz * x, dz, dz * w", "return dz * w, dz, dz * x", "dL/dw is wrong: yours -0.265, expected -1.061; this is dL/dx; the order is dL/dw, dL/db, dL/dx (case"),
    Mistake("1.2", "(y - t) * ", "2 * (y - t) * ", "dL/dw is wrong: yours -2.122, expected -1.061; the 2 of the square and the 1/2 cancel"),
    Mistake("1.2", "return dz * x, dz, dz * w", "return dz * x, dz", "expected the three numbers (dL/dw, dL/db, dL/dx)"),
    Mistake("1.2", "    y = math.tanh(w * x + b)\n",
            "    def loss(x, w, b):\n        return (math.tanh(w * x + b) - t) ** 2 / 2\n\n    slope = numerical_derivative\n"
            "    return slope(lambda w: loss(x, w, b), w), slope(lambda b: loss(x, w, b), b), slope(lambda x: loss(x, w, b), x)\n    y = 0\n",
            "dL/dw is wrong: yours 47.229511, expected 47.229514 (case: x = 40"),
    Mistake("2.1", "y.requires_grad, y.node = True, node", "y.requires_grad, y.node = True, Context(cls, inputs)",
            "what forward saved is not in the node"),
    Mistake("2.1", "        if any(x.requires_grad for x in inputs):\n            y", "        if True:\n            y",
            "the result requires a gradient, although no input does (case: b * b, of a leaf without requires_grad)"),
    Mistake("2.1", "        if any(x.requires_grad for x in inputs):\n", "        y.node = node\n        if any(x.requires_grad for x in inputs):\n",
            "the result has a node, although no input requires a gradient (case: b * b"),
    Mistake("2.1", "        return y\n", "        return y.data\n", "apply returned an ndarray, expected a Tensor"),
    Mistake("2.1", "if any(x.requires_grad", "if all(x.requires_grad", "does not require a gradient, although an input"),
    Mistake("2.1", "node = Context(cls, inputs)", "node = Context(cls, inputs[::-1])", ".inputs are not the Tensors"),
    Mistake("2.1", "return unbroadcast(g * b, a.shape), unbroadcast(g * a, b.shape)", "return g * a, g * b",
            "the gradient of a is wrong at [0, 0]: yours "),
    Mistake("2.1", "return unbroadcast(g, a_shape), unbroadcast(g, b_shape)", "return g, -g", "the gradient of b is wrong"),
    Mistake("2.2", "if uses[x] == 0:", "if True:", "twice"),
    Mistake("2.2", "uses[x] = uses.get(x, 0) + 1", "uses[x] = 1",
            "a is an input of b, so it must come after it in the list: d, c, a, b (case: consumers_first(d), a = x + x, b = a + x, "),
    Mistake("2.2", "        if y.node is not None:\n            order", "        if True:\n            order", "the list has a leaf"),
    Mistake("2.2", "    return order\n", "    return order[::-1]\n", "a is an input of b, so it must come after it in the list: a, b"),
    Mistake("2.2", "    return order\n", "    return order[1:]\n", "the list has 0 of 1 Tensors (case: consumers_first(y), y = x * x"),
    Mistake("2.2", "    uses = {}", RECURSIVE, "the recursion is too deep for Python"),
    Mistake("2.3", "gradients[x] + dx if x in gradients else dx", "dx", "x.grad is wrong at [0]: yours 1.000, expected 2.000"),
    Mistake("2.3", "np.array(total) if leaf.grad is None else leaf.grad + total", "np.array(total)",
            "x.grad is wrong: yours 3.000, expected 6.000 (case: y = 3 x, a second call)"),
    Mistake("2.3", "= np.array(total) if", "= total if", "shares its memory"),
    Mistake("2.3", "gradients[x] = gradients[x] + dx if x in gradients else dx",
            "gradients[x] = np.add(gradients[x], dx, out=gradients[x]) if x in gradients else dx", "the upstream gradient g was changed"),
    Mistake("2.3", " and x.requires_grad:", ":", "a leaf without requires_grad got a gradient"),
    Mistake("2.3", "if dx is not None and", "if", "an input for which backward returned None got a gradient"),
    Mistake("2.3", "gradients.pop(y, None)", "gradients.pop(y)",
            "KeyError in tensor.py, line 43: Tensor([0. 0. 0.], made by _Weighted) (case: m = 2 a, an operation on x and m returns None for m: m has no gradient, skip it)"),
    Mistake("2.3", "np.ones_like(self.data) if g is None else g", "np.ones_like(self.data)", "x.grad is wrong at [1]: yours 2.000, expected -4.000"),
    Mistake("2.3", "np.ones_like(self.data) if g is None else g", "np.array(1.0) if g is None else g",
            "x.grad has shape (), expected (3,) (case: y = 3 x of shape (3,), without an upstream gradient)"),
    Mistake("2.3", "np.ones_like(self.data) if g is None else g", "np.ones(self.shape) if g is None else g",
            "x.grad is float64, expected float32"),
    Mistake("3.1", "(*range(added), *repeated)", "tuple(range(added))", "ValueError in tensor.py, line "),
    Mistake("3.1", ".reshape(shape)\n\n\nclass MatMul", "\n\n\nclass MatMul", "the result has shape (3,), expected (3, 1)"),
    Mistake("3.1", "unbroadcast(g * a, b.shape)", "g * a", "the gradient of b has shape (3, 1), expected () (case: Multiply.backward for shapes (3, 1), ())"),
    Mistake("3.1", "g.sum(axis=(*", "g.mean(axis=(*", "yours 1.000, expected 8.000 (case: the example of the docstring)"),
    Mistake("3.1", "    added =", BY_SIZE, "the result is wrong at [0, 0]: yours -1.120, expected 0.912 (case: from (3, 3) to (1, 3))"),
    Mistake("3.2", "da = g @ b.swapaxes(-1, -2)", "da = g @ b", "ValueError in tensor.py, line "),
    Mistake("3.2", "unbroadcast(da, a.shape), unbroadcast(db, b.shape)", "da, db",
            "the gradient of b has shape (2, 4, 5), expected (4, 5) (case: (2, 3, 4) @ (4, 5): one matrix for all)"),
    Mistake("3.2", "return a @ b\n", "return a @ b * 2\n", "the output is wrong at [0, 0]: yours "),
    Mistake("3.2", "db = a.swapaxes(-1, -2) @ g", "db = a.T @ g", "(case: (2, 3, 4) @ (2, 4, 5))"),
    Mistake("4.1", "v = rng.standard_normal(np.shape(f(x)))", "v = np.ones(np.shape(f(x)))",
            "a gradient that is 7 times too large was called right (case: softmax)"),
    Mistake("4.1", "1e-6 * np.abs", "1e-2 * np.abs", "a gradient that is 0.1% too large was called right"),
    Mistake("4.1", "if not difference <= 1e-6 * np.abs(slopes).sum() + 1e-10:", "if difference > 1e-6 * np.abs(slopes).sum() + 1e-10:",
            "a gradient that is not a number was called right"),
    Mistake("4.1", "            u = rng.standard_normal(x.shape)\n", "            u = v.copy() if v.shape == x.shape else rng.standard_normal(x.shape)\n",
            "a gradient with J instead of J^T was called right: are u and v independent? (case: A x, with a square matrix A)"),
    Mistake("4.1", "np.abs(slopes).sum() + 1e-10", "np.abs(slopes).sum()", "a right gradient was called wrong"),
    Mistake("4.1", "np.array_equal(x, kept[0]) and ", "", "a backward that edits x was called right"),
    Mistake("4.1", "            slopes =", "            u[:-1] = 0\n            slopes =", "a gradient that is wrong at [0, 0] was called right"),
    Mistake("4.1", "            slopes =", "            u[2:] = 0\n            slopes =", "a gradient that is wrong at [2, 0] was called right"),
    Mistake("4.1", "            slopes =", "            u[1, 2] = 0\n            slopes =", "a gradient that is wrong at [1, 2] was called right"),
    Mistake("4.2", "y * (g - (g * y)", "y * (g + (g * y)", "yours 0.312, expected 0.188; the sum of g * y is subtracted, not added (case: the example of the docstring)"),
    Mistake("4.2", "return y * (g - (g * y).sum(axis=-1, keepdims=True))", "return y * (1 - y) * g", "; this is the diagonal of the Jacobian alone; "),
    Mistake("4.2", "return y * (g - (g * y).sum(axis=-1, keepdims=True))", "return y * g", "; y * g keeps only the part with [i = j]; "),
    Mistake("4.2", "return y * (g - (g * y).sum(axis=-1, keepdims=True))", "return y * g - (g * y).sum(axis=-1, keepdims=True)",
            "; the sum of g * y needs the factor y, too (case"),
    Mistake("4.2", "(g * y).sum(axis=-1", "(g * y).sum(axis=0", "the gradient of x is wrong at [0, 0]"),
    Mistake("4.2", "    (y,) = ctx.saved\n        return y *", "    (y,) = ctx.saved\n        y *= 2\n        return y *", "the gradient of x"),
    Mistake("4.2", "    (y,) = ctx.saved\n        return y *", "    (y,) = ctx.saved\n        g = np.clip(g, -1000, 1000)\n        return y *",
            "4.2: autograd.check_grads: softmax: backward is wrong for one -1.04858e+06 times as large: it is not linear (case"),
    Mistake("4.3", "        gw = g * weight\n", "        gw = g\n", "the gradient of x is wrong at [0, 0, 0]: yours "),
    Mistake("4.3", " - from_variance", "", "the gradient of x is wrong at [0, 0, 0]"),
    Mistake("4.3", "(g * xhat).sum(axis=samples), g.sum", "(g * xhat).sum(axis=-1), g.sum", "the gradient of weight has shape (2, 3), expected (5,)"),
    Mistake("4.3", "return weight * xhat + bias", "return xhat + bias", "the output is wrong at [0, 0, 0]: yours "),
    Mistake("4.3", "keepdims=True) + eps)", "keepdims=True))", "yours -1.0000000, expected -0.9999995 (case: the example of the docstring)"),
    Mistake("4.4", "phi + x * density", "phi", "the gradient of x is wrong at [0, 0]"),
    Mistake("4.4", "x * math.sqrt(0.5)", "x", "the output is wrong at [0]: yours -0.079, expected -0.159 (case: the example of the docstring)"),
    Mistake("4.4", "np.exp(-0.5 * x * x)", "np.exp(-x * x)", "the gradient of x is wrong at [0, 0]"),
    Mistake("5.1", "transpose(0, 2, 4, 1, 3, 5)", "transpose(0, 2, 4, 3, 5, 1)", "the result is wrong at [0, 0, 1]"),
    Mistake("5.1", "x = x.transpose(0, 2, 4, 1, 3, 5)", "pass", "yours 2.000, expected 4.000 (case: images = np.arange(32.0).reshape(1, 2, 4, 4), p = 2)"),
    Mistake("5.1", "transpose(0, 2, 4, 1, 3, 5)", "transpose(0, 4, 2, 1, 3, 5)", "the result is wrong at [0, 1, 0]"),
    Mistake("5.2", "weight.reshape(d, -1)", "weight.transpose(0, 2, 3, 1).reshape(d, -1)", "the output is wrong at [0, 0, 0]"),
    Mistake("5.2", "weight.reshape(d, -1)", "Tensor(weight.data.reshape(d, -1))",
            "proj.weight got no gradient: somewhere between it and the result, .data or a new Tensor was used instead of the Tensor (case"),
    Mistake("5.2", '"bias": w["proj.bias"]', '"bias": w["proj.bias"] * 0', "the output is wrong at [0, 0, 0]"),
    Mistake("6.1", "scale = q.shape[-1] ** -0.5", "scale = 1.0", "; the scale 1 / sqrt(d/h) is missing (case: 1 head"),
    Mistake("6.1", "scale = q.shape[-1] ** -0.5", "scale = 1 / q.shape[-1]", "; the scores are divided by d/h, not by its root (case: 1 head"),
    Mistake("6.1", "scale = q.shape[-1] ** -0.5", "scale = (q.shape[-1] * heads) ** -0.5",
            "; the scores are divided by sqrt(d), not by sqrt(d/h) (case: 2 heads, 5 tokens)"),
    Mistake("6.1", "maps /= maps.sum(axis=-1", "maps /= maps.sum(axis=-2", "(case: 1 head, v = 1: the weights of a query sum to 1 over the keys)"),
    Mistake("6.1", "scores -= scores.max(axis=-1, keepdims=True)", "pass", "yours nan, expected -21.8; e^x overflows for large x, unless"),
    Mistake("6.1", "        q, k, v = (split_heads(x, heads) for x in (q, k, v))",
            "        order = np.arange(q.shape[-1]).reshape(-1, heads).T.ravel()\n"
            "        q, k, v = (split_heads(x[..., order], heads) for x in (q, k, v))\n"
            "        join_heads = lambda x: globals()['join_heads'](x)[..., np.argsort(order)]",
            "; the last axis was split into (d/h, h), not into (h, d/h) (case: 2 heads, 5 tokens)"),
    Mistake("6.1", "return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)", "return x.reshape(batch, tokens, heads * width)",
            "(case: 2 heads, q = 0: each result is the mean of v)"),
    Mistake("6.1", "scores -= scores.max(axis=-1, keepdims=True)", "pass", "(case: scores up to thousands)"),
    Mistake("6.1", "maps /= maps.sum(axis=-1", "maps /= maps.sum(axis=-2", "the output is wrong at [0, 0, 0]"),
    Mistake("6.1", "heads, d // heads).transpose(0, 2, 1, 3)", "heads, d // heads).transpose(0, 2, 1, 3) + 0 * x.sum(dtype=np.float64)",
            "the output is float64, expected float32: something in it is float64, such as an array made without a dtype (np.ones, np.zeros) or a NumPy scalar (np.sqrt(2), "),
    Mistake("6.2", "keepdims=True)) * scale", "keepdims=True))", "the gradient of q is wrong at [0, 0, 0]"),
    Mistake("6.2", "dk = dscores.swapaxes(-1, -2) @ q", "dk = dscores.swapaxes(-1, -2) @ k", "the gradient of k is wrong at [0, 0, 0]"),
    Mistake("6.2", "dv = maps.swapaxes(-1, -2) @ g", "dv = maps @ g", "the gradient of v "),
    Mistake("6.2", "return join_heads(dq), join_heads(dk), join_heads(dv)", "return join_heads(dq), join_heads(dk)",
            "backward returned 2 gradients, expected 3, of q, k, v"),
    Mistake("6.2", "return join_heads(dq), join_heads(dk), join_heads(dv)", "join_heads(dq)", "backward returned None: is there a `return`?"),
    Mistake("6.2", "        dq = dscores @ k\n", "        k *= scale\n        dq = dscores @ k\n", "backward changed its argument `k`"),
    Mistake("6.3", "y = mix_heads(maps, weight_w, bias_w) @ v", "y = maps @ v", "the output is wrong at [0, 0, 0]"),
    Mistake("6.3", '{"weight": weight, "bias": bias}', '{"weight": weight.swapaxes(0, 1), "bias": bias}', "the output is wrong at [0, 0, 0]"),
    Mistake("6.3", "* q.shape[-1] ** -0.5", "* width**-0.5", "the output is wrong at [0, 0, 0]"),
    Mistake("6.3", "y = mix_heads(maps, weight_w, bias_w)", "y = mix_heads(maps, weight_w, bias_w * 0)", "the output is wrong at [0, 0, 0]"),
    Mistake("6.3", "* q.shape[-1] ** -0.5", "* Tensor(q.shape[-1] ** -0.5)", "the output is float64, expected float32"),
    Mistake("6.3", "return y.transpose(0, 2, 1, 3)", "return np.exp(y)", "operand 'Tensor' does not support ufuncs"),
    Mistake("6.3", "    return y.transpose(0, 2, 1, 3).reshape(batch, tokens, width // 3)",
            "    return np.concatenate([[y[:, i]] for i in range(heads)])", "the result is a NumPy array of Tensors"),
    Mistake("6.3", "return y.transpose(0, 2, 1, 3)", "return Tensor(y.data).transpose(0, 2, 1, 3)",
            "no input got a gradient: somewhere between them and the result, .data or a new Tensor was used instead of the Tensor"),
    Mistake("6.3", "q, k, v = (qkv.reshape", "q, k, v = (Tensor(qkv.data).reshape",
            "qkv got no gradient: somewhere between it and the result, .data or a new Tensor was used instead of the Tensor"),
    Mistake("7.1", 'return x + drop(w["gamma_2"] * ', 'return x + drop(', "the output is wrong at [0, 0, 0]"),
    Mistake("7.1", 'drop(w["gamma_2"] * feed_forward(layer_norm(x, part(w, "norm2"))', 'drop(w["gamma_2"] * feed_forward(layer_norm(x, part(w, "norm1"))', "the output is wrong"),
    Mistake("7.1", 'return x + drop(w["gamma_2"] * ', 'return x + (w["gamma_2"] * ', "(case: a drop that halves each branch)"),
    Mistake("7.1", 'drop(w["gamma_2"] * feed_forward(layer_norm(x, part(w, "norm2"))', 'drop(w["gamma_2"] * feed_forward(x', "the output is wrong at [0, 0, 0]"),
    Mistake("7.1", "    x = x + drop(", "    y = x + drop(", "the output is wrong at [0, 0, 0]"),
    Mistake("7.1", 'return x + drop(w["gamma_2"] * ', 'return x + drop(Tensor(1.0) * w["gamma_2"] * ', "the output is float64, expected float32"),
    Mistake("7.1", '    x = x + drop(w["gamma_1"] * ', '    x = x + (w["gamma_1"] * ', "drop was called 1 time, expected twice: for SA and for FFN"),
    Mistake("7.2", "(kept / (1 - rate))", "kept", "; kept branches are not divided by 1 - rate (case"),
    Mistake("7.2", "(kept / (1 - rate))", "(kept / (rate or 1))", "; kept branches are divided by rate, not by 1 - rate (case"),
    Mistake("7.2", "branch.shape[0], 1, 1)", "branch.shape[0], branch.shape[1], 1)", "part of a sample was dropped"),
    Mistake("7.2", ">= rate", "< rate", "74.0% of the samples were dropped, expected about 25.0% (case: rate 0.25"),
    Mistake("7.2", "kept = rng.random", "kept = np.random.default_rng(0).random", "draw from the generator that is given"),
    Mistake("7.2", "kept = rng.random", "kept = np.random.random", "draw from the generator that is given, and from no other"),
    Mistake("7.2", "kept = rng.random((branch.shape[0], 1, 1)) >= rate",
            "kept = (rng.permutation(branch.shape[0]) >= round(rate * branch.shape[0])).reshape(-1, 1, 1)",
            "every draw dropped exactly 5 of 10 samples: draw for each sample on its own"),
    Mistake("7.2", "kept = rng.random((branch.shape[0], 1, 1)) >= rate",
            "kept = np.repeat(rng.random((branch.shape[0] // 2, 1, 1)), 2, axis=0) >= rate",
            "100.0% of the draws treated two samples alike, expected about 50.0%"),
    Mistake("7.2", "return branch * (kept / (1 - rate))", "return Tensor(branch.data * (kept / np.float32(1 - rate)))",
            "the branch got no gradient: somewhere between it and the result, .data or a new Tensor was used"),
    Mistake("8.1", "q = linear(z[:, :1]", "q = linear(z", "the output has shape (2, 5, 8), expected (2, 1, 8)"),
    Mistake("8.1", "v = linear(z, ", "v = linear(z[:, 1:], ", "(called in attention.py, line "),
    Mistake("8.1", 'k = linear(z, part(w, "k"))\n    v = linear(z, part(w, "v"))', 'k = linear(z, part(w, "v"))\n    v = linear(z, part(w, "k"))',
            "the output is wrong at [0, 0, 0]"),
    Mistake("8.1", "Attention.apply(q, k, v,", "Attention.apply(q * Tensor(1.0), k, v,", "the output is float64, expected float32"),
    Mistake("8.2", 'class_attention(layer_norm(z, part(w, "norm1")),', "class_attention(z,", "(case: a class-attention block, 2 heads)"),
    Mistake("8.2", ' + w["pos_embed"]', "", "the output is wrong at [0, 0]"),
    Mistake("8.2", "patches = self_attention_block(patches", "self_attention_block(patches", "the output is wrong at [0, 0]: yours "),
    Mistake("8.2", "return x + w[\"gamma_2\"] * feed", "return x_class + w[\"gamma_2\"] * feed",
            "the output is wrong at [0, 0, 0]"),
    Mistake("8.2", 'w["cls_token"] + np.zeros', 'Tensor(w["cls_token"].data) + np.zeros', "cls_token got no gradient"),
    Mistake("8.2", 'part(w, f"blocks_token_only.{i}"), heads)', 'part(w, f"blocks_token_only.{i}"), 2)',
            "(case: CaiT with 1 + 2 blocks, 4 heads, 9 patches)"),
    Mistake("8.2", 'layer_norm(z, part(w, "norm1")), part(w, "attn"), heads)', 'layer_norm(z, part(w, "norm1")), part(w, "attn"), 2)',
            "(case: a class-attention block, 4 heads)"),
    Mistake("8.2", 'count(w, "blocks")', "2", "(case: CaiT with 1 + 2 blocks, 4 heads, 9 patches)"),
    Mistake("8.2", 'w["cls_token"] + np.zeros((patches.shape[0], 1, patches.shape[2]))',
            'w["cls_token"] + Tensor(np.zeros((patches.shape[0], 1, patches.shape[2])))', "the output is float64, expected float32"),
    Mistake("9.1", "b2 * v + (1 - b2) * g**2", "b2 * v + (1 - b2) * g", "v is wrong at [0, 0]: yours "),
    Mistake("9.1", "v / (1 - b2**t)", "v", "theta is wrong at [0, 0]: yours "),
    Mistake("9.1", "lr * (m_hat / (np.sqrt(v_hat) + eps) + decay * theta)", "lr * m_hat / (np.sqrt(v_hat) + eps) - decay * theta",
            "theta is wrong at [0, 0]"),
    Mistake("9.1", "np.sqrt(v_hat) + eps", "np.sqrt(v_hat + eps)", "theta is wrong at ["),
    Mistake("9.1", "    m = b1 * m + (1 - b1) * g", "    m *= b1\n    m += (1 - b1) * g", "adamw changed its argument `m`"),
    Mistake("9.1", "    m = b1", "    g = g + decay * theta\n    m = b1", "m is wrong at [0, 0]: yours "),
    Mistake("9.1", "decay * theta), m, v", "decay * theta), m_hat, v", "m is the corrected one: return it without the correction (case: step 1"),
    Mistake("9.1", "decay * theta), m, v", "decay * theta), m, v_hat", "v is the corrected one: return it without the correction (case: step 1"),
    Mistake("9.2", "/ 2\n", "\n", "the learning rate is wrong: yours "),
    Mistake("9.2", "step / total", "(step - warmup) / (total - warmup)", "the learning rate is wrong: yours "),
    Mistake("9.2", "min(1.0, step / total)", "step / total", "(case: step 101 of 100"),
    Mistake("9.2", "start + (peak - start)", "(peak - start)", "(case: step 0 of 100"),
    Mistake("10.1", "return -(t", "return (t", "yours -1.386, expected 1.386 (case: the example of the docstring)"),
    Mistake("10.1", "/ len(difference)", "", "the gradient of logits is wrong at [0, 0]"),
    Mistake("10.1", "logits - logits.max(axis=-1, keepdims=True)", "logits * 1", "; e^x overflows for large x, unless you subtract the largest of each row first (case: logits up to thousands)"),
    Mistake("10.1", "smoothing / targets.shape[-1]", "smoothing", "the output is wrong: yours "),
    Mistake("10.1", ".sum(axis=-1).mean()", ".sum()", "the output is wrong: yours "),
    Mistake("10.1", "np.exp(log_p) - t)", "t - np.exp(log_p))", "the gradient of logits is wrong at [0, 0]"),
    Mistake("10.1", "        t = (1 - smoothing) * targets + smoothing / targets.shape[-1]\n",
            "        targets *= 1 - smoothing\n        targets += smoothing / targets.shape[-1]\n        t = targets.copy()\n",
            "forward changed its argument `targets`: compute a new array instead"),
    Mistake("10.1", "        t = (1 - smoothing) * targets", "        targets = np.float64(1) * targets\n        t = (1 - smoothing) * targets",
            "the output is float64, expected float32"),
    Mistake("10.2", "(1 - share) * images[::-1]", "(1 - share) * images", "the batch of mixed images is wrong at [0, 0, 0, 0]"),
    Mistake("10.2", "return mixed, share * targets + (1 - share) * targets[::-1]", "return mixed, targets", "; the targets are mixed, too (case"),
    Mistake("10.2", "    mixed = images.copy()", "    mixed = images", "changed its argument `images`"),
    Mistake("10.2", "share = 1 - (bottom - top)", "share = (bottom - top)",
            "the batch of mixed targets is wrong at [0, 0]: yours 0.125, expected 0.875; mu is the share outside the box (case: the example of the docstring)"),
    Mistake("10.2", "mixed[..., top:bottom, left:right] = images[::-1, :, top:bottom, left:right]",
            "mixed[..., left:right, top:bottom] = images[::-1, :, left:right, top:bottom]", "the batch of mixed images is wrong at "),
    Mistake("10.2", "return share * images + (1 - share) * images[::-1], share", "share = 1 - share\n    return share * images + (1 - share) * images[::-1], share",
            "; mu is the share of the first image, not of its partner (case"),
    Mistake("10.2", "return share * images +", "return np.float64(share) * images +", "is float64, expected float32"),
    Mistake("10.2", "    top, bottom, left, right = box", "    top, left, bottom, right = box", "the batch of mixed images is wrong at [0, 0, 0, 0]: yours 0.000, expected 1.000 (case: the example of the docstring)"),
    Mistake("11.1", "share = len(images[piece]) / len(images)", "share = 1", "the loss is wrong: yours "),
    Mistake("11.1", "share = len(images[piece]) / len(images)", "share = micro_batch / len(images)", "the loss is wrong: yours "),
    Mistake("11.1", "        x.grad = None\n", "        pass\n", "the gradient of a is wrong at [0, 0]: yours 1"),
    Mistake("11.1", "np.zeros_like(x.data) if x.grad is None else x.grad", "x.grad", "the gradient of unused is None, expected an array"),
    Mistake("11.1", "piece = slice(start, start + micro_batch)", "piece = slice(0, None)", "loss_of got 8 images at once, allowed 3"),
    Mistake("22.1", "mixed = x * ~mask + x[::-1] * mask", "mixed = x * mask + x[::-1] * ~mask", "the output is wrong at [0, 0, 0, 0]"),
    Mistake("22.1", "x[::-1] * mask", "Tensor(x.data[::-1]) * mask", "the gradient of x is wrong at "),
    Mistake("22.1", "(1 - share) * targets + share * targets[::-1]", "share * targets + (1 - share) * targets[::-1]",
            "the target of an image is wrong at [0, 0]"),
    Mistake("22.1", "targets[::-1, None], targets[:, None]", "targets[:, None], targets[::-1, None]", "the target of a token is wrong"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.number}-{m.new[:40]}")
def test_a_mistake_is_caught(mistake, tmp_path):
    folder = write(tmp_path, {find(mistake.number).file: (mistake.old, mistake.new)})
    result = grade(folder, mistake.number, seconds=5)
    assert not result.passed
    assert result.message.startswith(f"{mistake.number}: ") and mistake.words in result.message, result.message


def test_every_exercise_has_typical_mistakes():
    counts = {e.number: sum(m.number == e.number for m in MISTAKES) for e in EXERCISES}
    assert counts.pop("12.1") == 0  # in test_training_mistakes.py
    assert min(counts.values()) >= 3


@pytest.mark.parametrize("place", [p for p in places() if p.name.endswith(".backward")], ids=lambda p: p.name)
def test_a_backward_that_ignores_the_upstream_gradient(place, tmp_path):
    path = write(tmp_path) / place.file
    lines = path.read_text().split("\n")
    body = functions(ast.parse(path.read_text()))[place.name].body
    ones = "None" if place.name == "Tensor.backward" else "np.ones_like(g)"
    lines.insert(body[1].lineno - 1, f"{' ' * body[1].col_offset}g = {ones}")
    path.write_text("\n".join(lines))
    message = grade(tmp_path, place.number).message
    assert re.match(rf"{place.number}: (x\.grad|the gradient of \w+) is wrong", message), message
