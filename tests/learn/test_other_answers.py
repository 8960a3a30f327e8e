"""Other right answers than ours pass: a check looks at what comes out, not at how."""

import pytest

from minicait.learn import find, grade
from tests.learn.folders import with_bodies, write

ANSWERS = {
    ("2.1", "Function.apply"): """
        ctx = Context(cls, inputs)
        arrays = [x.data for x in inputs]
        result = Tensor(cls.forward(ctx, *arrays, **settings), requires_grad=any([x.requires_grad for x in inputs]))
        result.node = ctx if result.requires_grad else None
        return result
        """,
    ("2.1", "Multiply.backward"): """
        a, b = [x.data for x in ctx.inputs]
        ctx.shapes = a.shape, b.shape
        return unbroadcast(g * b, ctx.shapes[0]), unbroadcast(g * a, ctx.shapes[1])
        """,
    ("2.2", "consumers_first"): """
        # depth first without recursion: a Tensor follows all of its inputs in `order`
        order, seen, stack = [], {id(output)}, [(output, iter(inputs_of(output)))]
        while stack:
            y, rest = stack[-1]
            for x in rest:
                if id(x) not in seen:
                    seen.add(id(x))
                    stack.append((x, iter(inputs_of(x))))
                    break
            else:
                stack.pop()
                if y.node:
                    order.append(y)
        return order[::-1]
        """,
    ("2.3", "Tensor.backward"): """
        sums = {id(self): np.ones_like(self.data) if g is None else g + 0}
        for y in consumers_first(self):
            if id(y) not in sums:
                continue
            results = y.node.function.backward(y.node, sums[id(y)])
            if not isinstance(results, tuple):
                results = [results]
            for x, dx in zip(y.node.inputs, results):
                if dx is None:
                    continue
                if x.node is not None:
                    sums[id(x)] = sums.get(id(x), 0) + dx
                elif x.requires_grad:
                    x.grad = (0 if x.grad is None else x.grad) + dx
        if self.node is None:
            self.grad = sums[id(self)]
        """,
    ("3.1", "unbroadcast"): """
        while g.ndim > len(shape):
            g = g.sum(axis=0)
        for axis, size in enumerate(shape):
            if size == 1:
                g = g.sum(axis=axis, keepdims=True)
        return g
        """,
    ("4.1", "gradient_is_right"): """
        rng = np.random.default_rng(seed)
        v = 2 * rng.normal(size=f(x).shape)  # a scalar, if f(x) is one
        given, before = v.copy(), x.copy()
        gradient = backward(x, v)
        if gradient.shape != x.shape or not np.all(v == given) or not np.all(x == before):
            return False
        for i in np.ndindex(*x.shape):
            up, down = x.copy(), x.copy()
            up[i] += 1e-5
            down[i] -= 1e-5
            if not np.isclose((v * (f(up) - f(down))).sum() / 2e-5, gradient[i], rtol=1e-5, atol=1e-9):
                return False
        return True
        """,
    ("4.2", "Softmax.backward"): """
        y = ctx.saved[0]
        jacobian = y[..., None] * (np.eye(y.shape[-1], dtype=y.dtype) - y[..., None, :])
        return np.einsum("...j,...ji->...i", g, jacobian)
        """,
    ("4.3", "LayerNorm.forward"): """
        xhat = (x - x.mean(-1, keepdims=True)) / (std := np.sqrt(x.var(-1, keepdims=True) + eps))
        ctx.save(xhat, std, weight)
        return xhat * weight + bias
        """,
    ("6.1", "Attention.forward"): """
        def split(x):
            return x.reshape(*x.shape[:2], heads, -1)

        a, b, c = split(q), split(k), split(v)
        scores = np.einsum("bqhc,bkhc->bhqk", a, b) / a.shape[-1] ** 0.5
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("bhqk,bkhc->bqhc", e / e.sum(-1, keepdims=True), c).reshape(q.shape)
        """,
    ("6.3", "talking_heads"): """
        B, N, width = qkv.shape
        d, h = width // 3, weight_l.shape[0]
        q, k, v = [qkv[:, :, i * d : (i + 1) * d].reshape(B, N, h, d // h).transpose(0, 2, 1, 3) for i in range(3)]
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d / h)
        scores = (scores.transpose(0, 2, 3, 1) @ weight_l.transpose(1, 0) + bias_l).transpose(0, 3, 1, 2)
        maps = Softmax.apply(scores)
        maps = (weight_w @ maps.reshape(B, h, N * N)).reshape(B, h, N, N) + bias_w.reshape(1, h, 1, 1)
        return (maps @ v).transpose(0, 2, 1, 3).reshape(B, N, d)
        """,
    ("7.2", "drop_path"): """
        if rng is None or rate == 0:
            return branch
        factors = rng.binomial(1, 1 - rate, size=branch.shape[0]) / (1 - rate)
        return branch * factors.reshape(-1, 1, 1)
        """,
    ("9.1", "adamw"): """
        m = m * betas[0] + g * (1 - betas[0])
        v = v * betas[1] + g * g * (1 - betas[1])
        size = lr / (1 - betas[0] ** t)
        root = np.sqrt(v) / (1 - betas[1] ** t) ** 0.5
        return theta * (1 - lr * decay) - size * m / (root + eps), m, v
        """,
    ("10.1", "CrossEntropy.forward"): """
        classes = logits.shape[1]
        t = targets * (1 - smoothing) + smoothing * np.full_like(targets, 1 / classes)
        largest = logits.max(1)
        total = largest + np.log(np.exp(logits - largest[:, None]).sum(1))
        ctx.save(np.exp(logits - total[:, None]) - t)
        return np.mean((t * (total[:, None] - logits)).sum(1))
        """,
    ("11.1", "loss_and_gradients"): """
        total, gradients = 0.0, {name: np.zeros_like(x.data) for name, x in w.items()}
        for start in range(0, len(images), micro_batch):
            x, t = images[start : start + micro_batch], targets[start : start + micro_batch]
            for tensor in w.values():
                tensor.grad = None
            loss = loss_of(w, x, t)
            loss.backward(np.array(len(x) / len(images)))
            total += loss.data * len(x) / len(images)
            for name, tensor in w.items():
                if tensor.grad is not None:
                    gradients[name] += tensor.grad
        return float(total), gradients
        """,
    ("22.1", "mix_token"): """
        keep = (~inside)[None, :, :, None].astype(x.data.dtype)
        mixed = x * keep + x[::-1] * (1 - keep)
        each = np.stack([np.where(flag, targets[::-1], targets) for flag in inside.ravel()], axis=1)
        return mixed, each, each.mean(axis=1)
        """,
}


@pytest.mark.parametrize(("number", "name"), ANSWERS)
def test_another_right_answer_passes(number, name, tmp_path):
    folder = write(tmp_path)
    path = folder / find(number).file
    path.write_text(with_bodies(path.read_text(), {name: ANSWERS[number, name]}))
    result = grade(folder, number)
    assert result.passed, result.message
