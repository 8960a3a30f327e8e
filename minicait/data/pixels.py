"""Pixels: batches on their way to a GPU, as bytes, and the kernel that makes normalised images of them there.

    image = (pixel / 255 - mean) / std, or inside an erased box (pixel - 128) / 25: noise, which comes as bytes, too
    mixed = keep image + (1 - keep) partner, or for cutmix the partner inside a box and the image outside

Bytes are a quarter of the floats that a model takes. Normalising, erasing, mixing and the transposition from (H, W, 3)
to (3, H, W) are one launch, which reads the bytes and writes the floats once.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from autograd import cuda
from autograd.backend import Array, array_module, on_device_of
from autograd.kernels.launch import elementwise
from autograd.random import Stream

from .mixing import Mixing, draw_mixing
from .slots import STEPS, ZERO, Slot

_ARGUMENTS = ("raw uint8 pixels, raw int32 boxes, int32 images, int32 height, int32 width, "
              "float32 keep, float32 rest, int32 top, int32 bottom, int32 left, int32 right, "
              "float32 factor_0, float32 factor_1, float32 factor_2, "
              "float32 shift_0, float32 shift_1, float32 shift_2, float32 zero, float32 steps")  # fmt: skip
_CUDA = """
    const float factor[3] = {factor_0, factor_1, factor_2}, shift[3] = {shift_0, shift_1, shift_2};
    const unsigned plane = height * width, own = (unsigned)i / plane, place = (unsigned)i % plane;
    const int row = place / width, column = place % width;
    const bool pasted = top <= row && row < bottom && left <= column && column < right;
    float mixed[3] = {0, 0, 0};
    for (int k = 0; k < 2; k++) {
        const float weight = k == 0 ? (pasted ? 0 : keep) : (pasted ? 1 : rest);
        if (weight == 0) continue;
        const long long image = k == 0 ? own : images - 1 - own, first = 3 * (image * plane + place);
        const bool erased = boxes[4 * image] <= row && row < boxes[4 * image + 1]
                         && boxes[4 * image + 2] <= column && column < boxes[4 * image + 3];
        for (int c = 0; c < 3; c++) {
            const float value = pixels[first + c];
            mixed[c] += weight * (erased ? (value - zero) / steps : value * factor[c] - shift[c]);
        }
    }
    for (int c = 0; c < 3; c++) out[(3ll * own + c) * plane + place] = mixed[c];
"""  # a thread for each pixel: it reads three bytes of one image, or of two, and writes three floats


class Transfer:
    """Copies of one slot's batches to a GPU, on a stream of their own, so that they run while the GPU computes.

    Memory of the host is written, copied and written again, memory of the GPU is copied, read and copied again. Two
    events keep the order: `copied`, for which the computing stream waits before it reads, and the host before workers
    write again; and `read`, for which the copying stream waits before it overwrites what was read.
    """

    def __init__(self, slot: Slot, stream: Any) -> None:
        cupy = cuda.module()
        self.slot, self.stream = slot, stream
        self.bytes: Array = cupy.empty(slot.bytes.size, np.uint8)
        self.copied = cupy.cuda.Event(block=True, disable_timing=True)  # block: sleep instead of spinning
        self.read = cupy.cuda.Event(disable_timing=True)
        self.read.record()  # by whatever had this memory before
        # Page-locked memory is copied by the GPU itself, while the host goes on. CuPy could allocate such memory, but
        # not where other processes see it; so shared memory is locked, once, after the workers were forked.
        self.address: int | None = slot.bytes.ctypes.data
        try:
            cupy.cuda.runtime.hostRegister(self.address, slot.bytes.nbytes, 0)
        except cupy.cuda.runtime.CUDARuntimeError as error:  # copies are right without, and slower
            warnings.warn(f"memory for images could not be page-locked: {error}", stacklevel=2)
            self.address = None

    def send(self, count: int) -> None:
        """Start to copy the first `count` samples."""
        self.stream.wait_event(self.read)
        there, here = on_device_of(self.bytes).data, self.slot.bytes.ctypes.data
        there.copy_from_host_async(here, self.slot.size(count), self.stream)
        self.copied.record(self.stream)

    def close(self) -> None:
        if self.address is not None:
            cuda.module().cuda.runtime.hostUnregister(self.address)
            self.address = None


class Pixels:
    """The pixels of a batch that is being copied to a GPU. They are there until the batch after the next is asked for.

    mean, std  of the colours, by which images are normalised
    """

    def __init__(self, transfer: Transfer, count: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.transfer, self.count = transfer, count
        self.height, self.width = transfer.slot.pixels.shape[1:3]
        self.factor = (1 / (255 * np.asarray(std))).astype(np.float32)  # as in `normalise`
        self.shift = (np.asarray(mean) / np.asarray(std)).astype(np.float32)

    def __len__(self) -> int:
        return self.count

    def mix(
        self, targets: np.ndarray, mixup_alpha: float, cutmix_alpha: float, stream: Stream
    ) -> tuple[Array, np.ndarray]:
        """Mix as `mixing.mix` does: images on the GPU, and targets, which are small, on the host."""
        mixing = draw_mixing(self.height, self.width, mixup_alpha, cutmix_alpha, stream)
        return self.normalised(mixing), targets if mixing is None else mixing.targets(targets)

    def normalised(self, mixing: Mixing | None = None) -> Array:
        """Normalised images (B, 3, H, W) in float32, mixed with those in reverse order if asked."""
        cupy, slot = array_module(self.transfer.bytes), self.transfer.slot
        keep, rest, box = np.float32(1), np.float32(0), (0, 0, 0, 0)
        if mixing is not None and mixing.box is not None:
            box = mixing.box
        elif mixing is not None:
            keep, rest = np.float32(mixing.keep), np.float32(1 - mixing.keep)
        head = slot.boxes.nbytes
        boxes, pixels = self.transfer.bytes[:head].view(np.int32), self.transfer.bytes[head:]
        images = cupy.empty((self.count, 3, self.height, self.width), np.float32)
        stream = cupy.cuda.get_current_stream()
        stream.wait_event(self.transfer.copied)
        elementwise(_ARGUMENTS, "raw float32 out", _CUDA, "images_of_pixels", "float32")(
            pixels, boxes, self.count, self.height, self.width, keep, rest, *box, *self.factor, *self.shift, ZERO,
            STEPS, images, size=self.count * self.height * self.width,
        )  # fmt: skip
        self.transfer.read.record(stream)
        return images
