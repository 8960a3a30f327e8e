"""Cases by hand: convolution and batch normalisation."""

from __future__ import annotations

from functools import partial

import numpy as np

from .. import ops
from .case import Case
from .samples import normal, positive, quiet, tiny

last = partial(ops.conv2d, channels_last=True)
MEAN, VAR = np.array([0.5, -1.0, 2.0]), np.array([0.25, 1.0, 3.0])

CONVOLUTION = [
    Case("conv2d", "plain", ops.conv2d, (normal(1, 2, 4, 5), normal(3, 2, 3, 2))),
    Case("conv2d", "bias and padding", partial(ops.conv2d, padding=1),
         (normal(2, 2, 3, 4), normal(2, 2, 3, 3), normal(2))),
    Case("conv2d", "pairs", partial(ops.conv2d, stride=(2, 1), padding=(0, 2)),
         (normal(2, 1, 5, 3), normal(2, 1, 3, 4))),
    Case("conv2d", "channels last", partial(last, padding=(1, 0)), (normal(2, 3, 4, 2), normal(3, 2, 3, 3), normal(3))),
    Case("conv2d", "stride 2", partial(last, stride=2, padding=1), (normal(1, 5, 4, 3), normal(4, 3, 3, 3))),
    Case("conv2d", "patches", partial(last, stride=2), (normal(2, 4, 5, 3), normal(3, 3, 2, 2), normal(3))),
    Case("conv2d", "stride larger than the kernel", partial(last, stride=3), (normal(2, 4, 7, 2), normal(3, 2, 1, 2))),
    Case("conv2d", "padding as large as the kernel", partial(last, padding=2),
         (normal(1, 2, 3, 2), normal(2, 2, 2, 1))),
    Case("conv2d", "one pixel", last, (normal(2, 3, 2, 3), normal(4, 3, 1, 1), normal(4))),
    Case("conv2d", "groups", partial(last, stride=(1, 2), padding=1, groups=2),
         (normal(2, 3, 4, 4), normal(6, 2, 2, 3), normal(6))),
    Case("conv2d", "several outputs for each channel", partial(ops.conv2d, groups=2),
         (normal(1, 2, 3, 3), normal(4, 1, 2, 2))),
    Case("conv2d", "depthwise", partial(last, padding=1, groups=3),
         (normal(2, 5, 4, 3), normal(3, 1, 3, 3), normal(3))),
    Case("conv2d", "depthwise, stride 2", partial(ops.conv2d, stride=2, padding=(1, 2), groups=3),
         (normal(1, 3, 5, 4), normal(3, 1, 3, 2))),
    Case("conv2d", "depthwise, padding as large as the kernel", partial(last, padding=1, groups=2),
         (normal(2, 2, 3, 2), normal(2, 1, 1, 1))),
    Case("conv2d", "wide", partial(last, padding=1),
         (tiny(normal(2, 1, 3, 66)), tiny(normal(66, 66, 2, 1)), tiny(normal(66)))),
    Case("conv2d", "depthwise, wide", partial(last, padding=1, groups=130),
         (tiny(normal(2, 1, 3, 130)), tiny(normal(130, 1, 2, 3)), tiny(normal(130)))),
    Case("conv2d", "tall", partial(last, padding=2), (quiet(2, 46, 47, 2), normal(2, 2, 5, 5), normal(2)), True),
    Case("conv2d", "tall, stride 2", partial(last, stride=2, padding=1),
         (quiet(1, 80, 82, 3), normal(2, 3, 3, 3)), True),
    Case("conv2d", "depthwise, tall", partial(last, padding=1, groups=2),
         (quiet(2, 46, 47, 2), normal(2, 1, 3, 3), normal(2)), True),
    Case("batch_norm", "of the batch", ops.batch_norm, (normal(3, 2, 3, 2), normal(2), normal(2)), True),
    Case("batch_norm", "last axis", partial(ops.batch_norm, axis=-1, eps=0.1),
         (normal(7, 3), normal(3), normal(3)), True),
    Case("batch_norm", "far from zero", partial(ops.batch_norm, axis=-1), (positive(2, 6, 3), normal(3), normal(3))),
    Case("batch_norm", "given statistics", partial(ops.batch_norm, mean=MEAN, var=VAR),
         (normal(2, 3, 4), normal(3), normal(3))),
    Case("batch_norm", "wide", partial(ops.batch_norm, axis=2, eps=0.1),
         (tiny(normal(5, 1, 66)), tiny(normal(66)), tiny(normal(66))), True),
    Case("batch_norm", "tall", ops.batch_norm, (normal(4099, 2), normal(2), normal(2)), True),
]  # fmt: skip
