"""What a training step at full size asks of the GPU and costs the host: budgets, so that neither grows unseen.

When a step asks for less, lower them. The time of the host is in units of one `cupy.add` in the same process.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.hostcuda
ROOT = Path(__file__).parents[2]
# Kernels that add up all tokens or pixels
REDUCTIONS = {"sum_rows", "layer_norm_grad", "mix_softmax_mix_grad", "squares", "affine_grad", "batch_moments",
              "batch_norm_sums", "depthwise_weight"}  # fmt: skip


class Budget(NamedTuple):
    launches: int
    gemms: int
    on_device: int  # copies
    host: float  # in additions
    small_sums: int  # by CuPy, on a few blocks


@pytest.mark.parametrize("model, drop_path, budget", [
    ("cait_xxs24_224", 0.0, Budget(1122, 507, 1, 20_000, 25)),  # dbias of talking heads, of 24,576 values
    ("cait_xxs24_224", 0.05, Budget(1266, 507, 1, 27_000, 25)),
    ("cait_s24_224", 0.05, Budget(1266, 507, 1, 27_000, 25)),
    ("deit_tiny_patch16_224", 0.0, Budget(471, 221, 1, 9_000, 1)),  # the gradient of the class token, of 128 rows
    ("deit3_small_patch16_224", 0.05, Budget(543, 221, 0, 15_000, 1)),
    ("resmlp_12_224", 0.0, Budget(395, 113, 0, 8_000, 0)),
    ("patchconvnet_s20_224", 0.0, Budget(1079, 303, 1, 19_000, 2)),
    ("lvvit_t_224", 0.0, Budget(778, 442, 3, 15_000, 1)),
])  # fmt: skip
def test_a_step_with_128_images_in_float16(model, drop_path, budget):
    step, host = measured(model, "--drop-path", str(drop_path))
    print(f"\n{model}, drop rate {drop_path}: {len(step['launches'])} launches, {len(step['gemms'])} calls of cuBLAS, "
          f"{step['on_device']} copies on the GPU, {1e3 * step['seconds']:.0f} ms of the host ({host:.0f} additions)"
    )  # fmt: skip
    assert len(step["launches"]) <= budget.launches and len(step["gemms"]) <= budget.gemms
    assert step["to_host"] == 1 and step["to_device"] <= 2 and step["on_device"] <= budget.on_device
    assert host <= budget.host
    # all 25,088 tokens are summed by many blocks; sums of a few tokens need no more than a few
    names = {kernel for kernel, *_ in step["launches"]} & REDUCTIONS
    blocks = {name: max(b for kernel, b, _ in step["launches"] if kernel == name) for name in names}
    assert min(blocks.values()) >= 128, blocks
    few = [kernel for kernel, b, _ in step["launches"] if kernel.startswith("cupy_sum") and b < 32]
    assert len(few) <= budget.small_sums, few


@pytest.mark.parametrize("model, drop_path, others", [
    ("cait_xxs24_224", 0.05, 7), ("cait_s24_224", 0.1, 7), ("deit3_small_patch16_224", 0.05, 7),
    ("resmlp_12_224", 0.05, 7), ("patchconvnet_s20_224", 0.0, 7),
    ("lvvit_t_224", 0.0, 22),  # and copies of its running averages, in case that the step is skipped
])  # fmt: skip
def test_a_step_as_a_graph(model, drop_path, others):
    step, host = measured(model, "--drop-path", str(drop_path), "--graph")
    print(f"\n{model}, drop rate {drop_path}, as a graph: {len(step['launches'])} other launches, "
          f"{1e3 * step['seconds']:.0f} ms of the host ({host:.0f} additions)")  # fmt: skip
    assert step["graph_launches"] == 1 and len(step["launches"]) <= others and not step["gemms"]
    assert (step["to_host"], step["to_device"]) == (1, 1) and step["on_device"] <= 5
    assert host <= 2_500


def measured(model, *options):
    """A step on the null device, and its time on the host, in additions."""
    command = [sys.executable, "-m", "tests.hostcuda.null", model, *options, "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    step = json.loads(result.stdout)
    return step, step["seconds"] / step["unit"]
