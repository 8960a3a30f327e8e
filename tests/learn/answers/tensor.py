"""Answers to chapters 2 and 3."""


class Tensor:
    def backward(self, g=None):
        gradients = {self: np.ones_like(self.data) if g is None else g}
        for y in consumers_first(self):
            arrived = gradients.pop(y, None)
            if arrived is None:  # all its consumers returned None for it
                continue
            results = y.node.function.backward(y.node, arrived)
            for x, dx in zip(y.node.inputs, results if isinstance(results, tuple) else (results,), strict=True):
                if dx is not None and x.requires_grad:
                    gradients[x] = gradients[x] + dx if x in gradients else dx
        for leaf, total in gradients.items():  # only leaves are left
            leaf.grad = np.array(total) if leaf.grad is None else leaf.grad + total


class Function:
    def apply(cls, *inputs, **settings):
        node = Context(cls, inputs)
        y = Tensor(cls.forward(node, *(x.data for x in inputs), **settings))
        if any(x.requires_grad for x in inputs):
            y.requires_grad, y.node = True, node
        return y


class Add:
    def forward(ctx, a, b):
        ctx.save(a.shape, b.shape)
        return a + b

    def backward(ctx, g):
        a_shape, b_shape = ctx.saved
        return unbroadcast(g, a_shape), unbroadcast(g, b_shape)


class Multiply:
    def forward(ctx, a, b):
        ctx.save(a, b)
        return a * b

    def backward(ctx, g):
        a, b = ctx.saved
        return unbroadcast(g * b, a.shape), unbroadcast(g * a, b.shape)


def consumers_first(output):
    uses = {}  # by consumers that have not been visited
    found = [output]
    while found:
        for x in inputs_of(found.pop()):
            if x not in uses:
                found.append(x)
            uses[x] = uses.get(x, 0) + 1
    order, ready = [], [output]
    while ready:
        y = ready.pop()
        if y.node is not None:
            order.append(y)
        for x in inputs_of(y):
            uses[x] -= 1
            if uses[x] == 0:
                ready.append(x)
    return order


def inputs_of(y):
    return () if y.node is None else y.node.inputs


def unbroadcast(g, shape):
    added = g.ndim - len(shape)
    repeated = [added + axis for axis, size in enumerate(shape) if size == 1]
    return g.sum(axis=(*range(added), *repeated)).reshape(shape)


class MatMul:
    def forward(ctx, a, b):
        ctx.save(a, b)
        return a @ b

    def backward(ctx, g):
        a, b = ctx.saved
        da = g @ b.swapaxes(-1, -2)
        db = a.swapaxes(-1, -2) @ g
        return unbroadcast(da, a.shape), unbroadcast(db, b.shape)
