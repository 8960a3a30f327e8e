import numpy as np
from autograd import Tensor, ops, random, no_grad
from .module import Module, Parameter, Buffer
from .layers import uniform


class Conv2d(Module):
    def __init__(self, inputs, outputs, kernel, stride=1, padding=0, groups=1, bias=True, stream=None):
        stream = stream or random.unnamed()
        self.kernel, self.stride, self.padding, self.groups = kernel, stride, padding, groups
        b = (inputs // groups * kernel**2) ** -0.5
        self.weight = Parameter(uniform((outputs, inputs // groups, kernel, kernel), b, stream.named("weight")))
        self.bias = Parameter(uniform((outputs,), b, stream.named("bias"))) if bias else None

    def forward(self, x):
        p, s, k = self.padding, self.stride, self.kernel
        x = ops.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
        H = (x.shape[1] - k) // s + 1
        W = (x.shape[2] - k) // s + 1
        y = 0
        for i in range(k):
            for j in range(k):
                part = x[:, i : i + (H - 1) * s + 1 : s, j : j + (W - 1) * s + 1 : s]
                w = self.weight[:, :, i, j]
                y = y + (part * w[:, 0] if self.groups > 1 else ops.linear(part, w))
        return y if self.bias is None else y + self.bias


class BatchNorm(Module):
    couples_samples = True

    def __init__(self, dim, eps=1e-5, momentum=0.1):
        self.eps, self.momentum = eps, momentum
        self.weight = Parameter(np.ones(dim, np.float32))
        self.bias = Parameter(np.zeros(dim, np.float32))
        self.running_mean = Buffer(np.zeros(dim, np.float32))
        self.running_var = Buffer(np.ones(dim, np.float32))
        self.num_batches_tracked = Buffer(np.zeros((), np.int64))

    def forward(self, x):
        mean, var = self.running_mean, self.running_var
        if self.training:
            axes = tuple(range(x.ndim - 1))
            mean = x.mean(axes)
            var = ((x - mean) * (x - mean)).mean(axes)
            n = x.size // x.shape[-1]
            with no_grad():
                self.running_mean.data[...] = 0.9 * self.running_mean.data + 0.1 * mean.data
                self.running_var.data[...] = 0.9 * self.running_var.data + 0.1 * var.data * n / (n - 1)
                self.num_batches_tracked.data[...] += 1
        return (x - mean) / ops.sqrt(var + self.eps) * self.weight + self.bias
