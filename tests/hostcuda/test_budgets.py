"""What a training step at full size asks of the GPU and costs the host: budgets, so that neither grows unseen.

When a step asks for less, lower them. The time of the host is in units of one `cupy.add` in the same process.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.hostcuda
ROOT = Path(__file__).parents[2]
# Kernels that add up many values to one: ours, over all tokens or pixels, and CuPy's
REDUCTIONS = {"sum_rows", "layer_norm_grad", "mix_softmax_mix_grad", "squares", "affine_grad", "batch_moments",
              "batch_norm_sums", "depthwise_weight", "sum_products"}  # fmt: skip
OF_CUPY = re.compile(r"cupy_(sum|mean|prod|max|min|amax|amin|any|all|arg\w+|nan\w+|count_nonzero)(_.*)?")
FEW = 32  # blocks


class Budget(NamedTuple):
    launches: int
    gemms: int
    on_device: int  # copies
    host: float  # in additions, about twice what was measured: other tests run beside
    small: dict[str, int]  # reductions on a few blocks: the loss, the class token, biases of talking heads


CAIT = {"cupy_mean": 1, "cupy_sum": 25, "layer_norm_grad": 3, "sum_rows": 8}  # of 24 blocks and 2 of class attention


@pytest.mark.parametrize("model, drop_path, budget", [
    ("cait_xxs24_224", 0.0, Budget(1121, 507, 1, 28_000, CAIT)),
    ("cait_xxs24_224", 0.05, Budget(1265, 507, 1, 32_000, CAIT)),
    ("cait_s24_224", 0.05, Budget(1265, 507, 1, 32_000, CAIT)),
    ("deit_tiny_patch16_224", 0.0, Budget(470, 221, 1, 12_000, {"cupy_mean": 1, "cupy_sum": 1, "layer_norm_grad": 1})),
    ("deit3_small_patch16_224", 0.05,
     Budget(542, 221, 0, 13_500, {"cupy_mean": 1, "cupy_sum": 1, "layer_norm_grad": 1})),
    ("resmlp_12_224", 0.0, Budget(394, 113, 0, 9_500, {"cupy_mean": 1, "sum_rows": 12})),
    ("patchconvnet_s20_224", 0.0,
     Budget(999, 303, 1, 22_000, {"cupy_mean": 1, "cupy_sum": 2, "layer_norm_grad": 2, "sum_rows": 44})),
    ("lvvit_t_224", 0.0, Budget(778, 442, 3, 16_000, {"cupy_mean": 2, "cupy_sum": 1})),
])  # fmt: skip
def test_a_step_with_128_images_in_float16(model, drop_path, budget):
    step, host = measured(model, "--drop-path", str(drop_path))
    print(f"\n{model}, drop rate {drop_path}: {len(step['launches'])} launches, {len(step['gemms'])} calls of cuBLAS, "
          f"{step['on_device']} copies on the GPU, {1e3 * step['seconds']:.0f} ms of the host ({host:.0f} additions)"
    )  # fmt: skip
    assert (len(step["launches"]), len(step["gemms"])) == (budget.launches, budget.gemms)  # chapter 17 has them, too
    assert step["to_host"] == 1 and step["to_device"] <= 2 and step["on_device"] <= budget.on_device
    assert host <= budget.host
    # all 25,088 tokens are summed by many blocks; sums of a few tokens need no more than a few
    sums = [(kernel, blocks) for kernel, blocks, _ in step["launches"] if is_reduction(kernel)]
    assert Counter(kernel for kernel, blocks in sums if blocks < FEW) == budget.small
    most = {name: max(blocks for kernel, blocks in sums if kernel == name) for name, _ in sums if name in REDUCTIONS}
    assert min(most.values()) >= 128, most


def is_reduction(kernel):
    return kernel in REDUCTIONS or OF_CUPY.fullmatch(kernel) is not None


def test_which_kernels_of_cupy_are_reductions():
    names = ["cupy_sum", "cupy_sum_with_dtype", "cupy_mean", "cupy_max", "cupy_argmax", "cupy_copy__float32_float64",
             "cupy_maximum__float32_float32_float32", "cupy_add__float16_float32_float16"]  # fmt: skip
    assert [is_reduction(name) for name in names] == [True] * 5 + [False] * 3


@pytest.mark.parametrize("model, drop_path, others, most", [
    ("cait_xxs24_224", 0.05, 7, 2_600), ("cait_s24_224", 0.1, 7, 2_600), ("deit3_small_patch16_224", 0.05, 7, 1_400),
    ("resmlp_12_224", 0.05, 7, 1_400), ("patchconvnet_s20_224", 0.0, 7, 1_400),
    ("lvvit_t_224", 0.0, 22, 1_400),  # and copies of its running averages, in case that the step is skipped
])  # fmt: skip
def test_a_step_as_a_graph(model, drop_path, others, most):
    step, host = measured(model, "--drop-path", str(drop_path), "--graph")
    print(f"\n{model}, drop rate {drop_path}, as a graph: {len(step['launches'])} other launches, "
          f"{1e3 * step['seconds']:.0f} ms of the host ({host:.0f} additions)")  # fmt: skip
    assert step["graph_launches"] == 1 and len(step["launches"]) == others and not step["gemms"]
    assert (step["to_host"], step["to_device"]) == (1, 1) and step["on_device"] <= 5
    assert host <= most


def measured(model, *options):
    """A step on the null device, and its time on the host, in additions."""
    command = [sys.executable, "-m", "tests.hostcuda.null", model, *options, "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    step = json.loads(result.stdout)
    return step, step["seconds"] / step["unit"]
