"""Modules whose samples meet, and a small net around one of them."""

import numpy as np

from autograd import ops
from autograd.random import Stream
from minicait import nn


class Undeclared(nn.BatchNorm):
    couples_samples = False


class Centred(nn.Module):
    """Subtract the mean over the batch: no buffers, and nothing is declared."""

    def forward(self, x):
        return x - x.mean(0, keepdims=True)


class Gated(nn.Module):
    """A coupling behind a gain that starts at zero: the outputs are independent at first, the gradients are not."""

    def __init__(self):
        self.gain = nn.Parameter(np.zeros(1, np.float32))

    def forward(self, x):
        return x + self.gain * (x - x.mean(0, keepdims=True))


class Mixed(nn.Module):
    """Every sample gets something of its neighbour in the batch."""

    def forward(self, x):
        return 0.9 * x + 0.1 * ops.concat([x[1:], x[:1]])


class Counted(nn.Module):
    """It couples nothing, but writes a buffer in forward."""

    def __init__(self):
        self.calls = nn.Buffer(np.zeros(1, np.float32))

    def forward(self, x):
        self.calls.data[...] += 1
        return x


class Net(nn.Module):
    """Patches, a norm, an activation, their mean, a head."""

    def __init__(self, norm, num_classes=10, seed=0):
        stream = Stream(seed, "net")
        self.patches = nn.PatchEmbed(4, 12, stream=stream.named("patches"))
        self.stages = [nn.Linear(12, 12, stream=stream.named("stage")), norm]
        self.head = nn.Linear(12, num_classes, stream=stream.named("head"))

    def forward(self, images):
        x = self.patches(images)
        for stage in self.stages:
            x = stage(x)
        return self.head(ops.gelu(x).mean(1))
