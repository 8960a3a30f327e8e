"""Chapters 2 and 3: a Tensor, the graph that its operations record, and backward through that graph."""

from __future__ import annotations

from typing import Any

import numpy as np


class Tensor:
    """An array, its gradient, and the node that made it: None for a leaf."""

    __array_ufunc__ = None  # so that array + Tensor calls Tensor.__radd__, and NumPy makes no array of Tensors

    def __init__(self, data: Any, requires_grad: bool = False) -> None:
        array = np.asarray(data)
        self.data: np.ndarray = array if array.dtype.kind == "f" else array.astype(np.float64)
        self.requires_grad = requires_grad
        self.grad: np.ndarray | None = None  # filled by backward, for leaves that require a gradient
        self.node: Context | None = None

    def backward(self, g: np.ndarray | None = None) -> None:
        """2.3  Add the gradients of this Tensor to `.grad` of every leaf that requires one.

        g  the upstream gradient, of this Tensor's shape and dtype; None stands for ones

        Go through `consumers_first(self)` (2.2). At each Tensor y, the gradient of y is complete:
        `y.node.function.backward(y.node, gradient)` returns an array, or a tuple with one entry for each of
        `y.node.inputs`. Pass the entries on to these inputs.

        - A Tensor that is used several times gets the sum of what arrives.
        - An operation may return one array for two inputs, or g itself: never add to an array in place that you did
          not make.
        - Leaves without `requires_grad` keep `.grad` None, and so do results of operations.
        - An entry may be None: along this way there is no gradient. If that holds for every way to a leaf, its `.grad`
          stays as it was. If it holds for every way to the result of an operation, its backward does not run.
        - A second call adds to `.grad` once more. `.grad` is an array of its own, of the leaf's shape and dtype.

        Example: with x = Tensor(3.0, requires_grad=True), (x * x).backward() makes x.grad 6.0.
        """
        raise NotImplementedError("2.3")

    # ---- given: attributes and operators

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    def __repr__(self) -> str:
        made = "" if self.node is None else f", made by {self.node.function.__name__}"
        return f"Tensor({np.array2string(self.data, precision=4, threshold=20)}{made})"

    def like(self, other: Any) -> Tensor:
        """A number or array as a Tensor of this dtype."""
        return other if isinstance(other, Tensor) else Tensor(np.asarray(other, self.data.dtype))

    def __add__(self, other: Any) -> Tensor:
        return Add.apply(self, self.like(other))

    def __mul__(self, other: Any) -> Tensor:
        return Multiply.apply(self, self.like(other))

    def __neg__(self) -> Tensor:
        return self * -1

    def __sub__(self, other: Any) -> Tensor:
        return self + -self.like(other)

    def __rsub__(self, other: Any) -> Tensor:
        return -self + other

    def __truediv__(self, number: float) -> Tensor:
        return self * (1 / number)

    def __matmul__(self, other: Tensor) -> Tensor:
        return MatMul.apply(self, other)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> Tensor:
        return GetItem.apply(self, index=index)

    def reshape(self, *shape: int) -> Tensor:
        return Reshape.apply(self, shape=shape)

    def transpose(self, *axes: int) -> Tensor:
        return Transpose.apply(self, axes=axes)

    def swapaxes(self, a: int, b: int) -> Tensor:
        axes = list(range(len(self.shape)))
        axes[a], axes[b] = axes[b], axes[a]
        return self.transpose(*axes)

    def sum(self) -> Tensor:
        return Sum.apply(self)


class Context:
    """A node of the graph, made for one call of an operation: the operation, its inputs, and what forward saved for
    backward. Both get it as their first argument, `ctx`."""

    def __init__(self, function: Any, inputs: tuple[Tensor, ...]) -> None:
        self.function = function
        self.inputs = inputs
        self.saved: tuple[Any, ...] = ()

    def save(self, *values: Any) -> None:
        """Keep arrays or plain values for backward, which finds them in `ctx.saved`, a tuple. Call it once."""
        self.saved = values


class Function:
    """A differentiable operation: `forward` takes arrays and returns one; `backward` takes the upstream gradient, of
    the shape of that result, and returns the gradient of each input: one array, or a tuple. Neither edits an argument.

    What backward needs of the inputs or of the result, forward keeps with `ctx.save(...)`.

    Results have the dtype of the arrays, float64 or float32. An array made without a dtype (np.ones, np.zeros) and a
    NumPy scalar (np.sqrt(2)) are float64 and make the result float64; math.sqrt(2) does no harm.
    """

    @staticmethod
    def forward(ctx: Context, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("a Function needs a static method forward(ctx, *args)")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> Any:
        raise TypeError("a Function needs a static method backward(ctx, g)")

    @classmethod
    def apply(cls, *inputs: Tensor, **settings: Any) -> Tensor:
        """2.1  Run the operation on the arrays of the inputs, and record it.

        inputs    Tensors; forward gets their arrays
        settings  plain values, such as an axis, for forward alone
        returns   a new Tensor

        1. Make a node: Context(cls, inputs). It is the `ctx` of forward, and later of backward.
        2. The result is a Tensor of `cls.forward(node, *arrays, **settings)`, with `arrays` the data of the inputs.
        3. If any input requires a gradient, the result requires one, too, and the node is its `.node`.
           If none does, the node is dropped: `.node` stays None, and `requires_grad` False.

        Example: Add.apply(a, b).node.inputs is (a, b), if a or b requires a gradient.
        """
        raise NotImplementedError("2.1")


class Add(Function):
    """y = a + b"""

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """2.1  The sum a + b, an array. backward needs nothing for it yet; for 3.1, save what undoes broadcasting."""
        raise NotImplementedError("2.1")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """2.1  The gradients of a and b from g, the gradient of the sum: a tuple of two arrays.

        a and b have the same shape here. For 3.1, they may be of different shapes.
        """
        raise NotImplementedError("2.1")


class Multiply(Function):
    """y = a * b, value by value"""

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """2.1  The product a * b, an array. Save what backward needs."""
        raise NotImplementedError("2.1")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """2.1  The gradients of a and b from g, the gradient of the product: a tuple of two arrays.

        a and b have the same shape here. For 3.1, they may be of different shapes.
        """
        raise NotImplementedError("2.1")


def consumers_first(output: Tensor) -> list[Tensor]:
    """2.2  The Tensors between `output` and the leaves, in the order in which backward visits them.

    The list holds `output` and everything it was computed from, each Tensor once, without leaves (their `.node` is
    None). A Tensor precedes the inputs of its node: when backward reaches it, all its consumers have run.

    A graph can be 20,000 operations deep: recursion would fail. 60 diamonds in a row have 2^60 paths: visit each Tensor
    once, not each path.

    Example: for y = a * b, z = y + y, consumers_first(z) is [z, y]. For a leaf the list is empty.
    """
    raise NotImplementedError("2.2")


def unbroadcast(g: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """3.1  The gradient of an input of `shape` that NumPy broadcast to the shape of g: the sum over its copies.

    Broadcasting adds axes in front, and repeats along axes of size 1. The result has exactly the shape `shape`; g stays
    as it is.
    Then use it in `Add.backward` and `Multiply.backward`: the check tests them, too.

    Example: unbroadcast(np.ones((2, 3, 4)), (3, 1)) is a column of three eights.
    """
    raise NotImplementedError("3.1")


class MatMul(Function):
    """y = a @ b, matrices in the last two axes; axes in front of them broadcast"""

    @staticmethod
    def forward(ctx: Context, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """3.2  a (..., n, k) times b (..., k, m) is (..., n, m)."""
        raise NotImplementedError("3.2")

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """3.2  The gradients of a and b from g (..., n, m). Mind inputs that were broadcast.

        Example: a (8, 16, 32) @ b (32, 10) has g (8, 16, 10), and the gradient of b is (32, 10).
        """
        raise NotImplementedError("3.2")


# ---- given: operations that move values, and their sum


class Reshape(Function):
    @staticmethod
    def forward(ctx: Context, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        ctx.save(x.shape)
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        return g.reshape(ctx.saved[0])


class Transpose(Function):
    @staticmethod
    def forward(ctx: Context, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        ctx.save(axes)
        return x.transpose(axes)

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        return g.transpose(np.argsort(ctx.saved[0]))


class GetItem(Function):
    """x[index], of integers, slices and ..."""

    @staticmethod
    def forward(ctx: Context, x: np.ndarray, index: Any) -> np.ndarray:
        ctx.save(x.shape, index)
        return np.asarray(x[index])

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        shape, index = ctx.saved
        dx = np.zeros(shape, g.dtype)
        dx[index] = g
        return dx


class Concat(Function):
    @staticmethod
    def forward(ctx: Context, *arrays: Any, axis: int) -> np.ndarray:
        ctx.save([x.shape[axis] for x in arrays], axis)
        return np.concatenate(arrays, axis)

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> tuple[np.ndarray, ...]:
        sizes, axis = ctx.saved
        return tuple(np.split(g, np.cumsum(sizes)[:-1], axis))


class Sum(Function):
    @staticmethod
    def forward(ctx: Context, x: np.ndarray) -> np.ndarray:
        ctx.save(x.shape)
        return np.asarray(x.sum())

    @staticmethod
    def backward(ctx: Context, g: np.ndarray) -> np.ndarray:
        return np.broadcast_to(g, ctx.saved[0])
