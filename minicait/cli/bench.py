"""minicait bench: speed and memory on this machine, also beside PyTorch, and time by operation."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from typing import Any

import numpy as np

from ..bench import WORK, Job, Measured, measure
from ..bench.gemm import gemm_rate
from ..bench.profile import profiled
from ..bench.worker import SIDES, bench_step
from ..machine import cpu_count
from ..models import create_model, find_model
from ..train.gradients import default_micro_batch
from ..train.recipe import PRODUCTS
from . import options

EXAMPLES = """examples:
  minicait bench                                                  one training step of cait_xxs24_224
  minicait bench --against timm                                   beside PyTorch (pip install -e '.[compare]')
  minicait bench --model lvvit_s_224 --batch 2 --against torch    beside a plain PyTorch module: timm has no LV-ViT
  minicait bench --model cait_tiny_32 --batch 128 --profile       time and memory by operation
  minicait bench --work predict --batch 1 --json
  minicait bench --device cuda --batch 64 --precision fp16        on a GPU
"""


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "bench", _bench, "measure speed and memory", EXAMPLES)
    add = parser.add_argument
    add("--model", default="cait_xxs24_224", help="a name of `minicait models` (default: %(default)s)")
    add("--batch", type=int, default=8, metavar="N", help="images (default: %(default)s)")
    add("--work", default="train", choices=WORK, help="(default: %(default)s)")
    options.add_device(parser)
    add("--precision", default="fp32", choices=list(PRODUCTS), help="of matrix products; on a CPU fp32 (default: fp32)")
    add("--threads", type=int, metavar="N", help="(default: all CPUs this process may use)")
    add("--micro-batch", type=int, metavar="N", help="images at a time (default: chosen by the model)")
    add("--rounds", type=int, default=5, metavar="N", help="number of measured steps (default: %(default)s)")
    add("--against", choices=[name for name in SIDES if name != "minicait"],
        help="measure this in turn, and print ratios; torch: a plain PyTorch module, for models that timm lacks; "
        "compiled: by torch.compile; threads: no processes")  # fmt: skip
    add("--profile", action="store_true", help="time and memory by operation, on one thread")
    add("--json", action="store_true", help="print JSON")


def _bench(args: argparse.Namespace) -> int:
    find_model(args.model)
    options.check_positive(args, "batch", "rounds", "threads", "micro_batch")
    options.check_threads(args.threads)
    if args.profile and args.against:
        raise ValueError("choose one of --profile and --against")
    if args.profile and args.device not in (None, "cpu"):
        raise ValueError("--profile needs the CPU: on a GPU, operations overlap")
    device, threads = "cpu" if args.profile else options.device(args), args.threads or cpu_count()
    job = Job(args.model, args.batch, args.work, threads, args.micro_batch, device, args.precision)
    if args.profile:
        return _profile(job, args.rounds, args.json)
    sides = measure(job, ["minicait", *([args.against] if args.against else [])], args.rounds)
    bound, ratios = _bound(job, sides[0]), _ratios(*sides)
    if args.json:
        print(json.dumps({**vars(job), "sides": [vars(side) for side in sides], **bound, **ratios}))
        return 0
    work = "training step" if job.work == "train" else "prediction"
    where = f"{job.threads} threads" if job.device == "cpu" else f"{job.device}, {job.precision}"
    print(f"{job.model}, batch {job.batch}, {work}, {where}, {args.rounds} rounds, {platform.machine()}")
    print(f"{'':16s} {'min':>9s} {'median':>9s} {'images/s':>9s} {'GFLOP/s':>9s} {'peak memory':>12s}")
    for side in sides:
        least, median, speed = min(side.seconds), side.median, job.batch / side.median
        rates = f"{speed:9.1f} {job.gigaflop() / median:9.1f}"
        print(f"{side.name:16s} {least:7.3f} s {median:7.3f} s {rates} {side.megabytes:9.0f} MB")
    if bound:
        print("matrix products at {gemm_gflops:.0f} GFLOP/s would take {floor:.3f} s: {reached:.0%} reached"
              .format(**bound))  # fmt: skip
    for name, value in ratios.items():
        print(f"{name.replace('_', ' ')}: {value:.2f}")
    return 0


def _bound(job: Job, side: Measured) -> dict[str, float]:
    """Lower bound on a CPU's time, that of the matrix products alone, and the share of its rate that was reached."""
    if job.device != "cpu":
        return {}
    rate = gemm_rate(job.threads)
    floor = job.gigaflop() / rate
    return {"gemm_gflops": rate, "floor": floor, "reached": floor / side.median}


def _ratios(ours: Measured, other: Measured | None = None) -> dict[str, float]:
    """Median ratio of consecutive steps, and ratio of peak memory."""
    if other is None:
        return {}
    faster = statistics.median(b / a for a, b in zip(ours.seconds, other.seconds, strict=True))
    return {"times_as_fast": faster, "memory_ratio": ours.megabytes / other.megabytes}


def _profile(job: Job, rounds: int, as_json: bool) -> int:
    """Profile one micro-batch on one thread."""
    model = create_model(job.model, 10, drop_path_rate=0.0)
    size = job.micro_batch or default_micro_batch(model, 2 * job.batch)  # at most half of that
    step = bench_step(model, size, job.work, threads=1, micro_batch=size)
    step()
    started = time.perf_counter()
    with profiled(model) as costs:
        for _ in range(rounds):
            step()
    total = (time.perf_counter() - started) / rounds
    rows = sorted(costs.items(), key=lambda item: -(item[1].forward + item[1].backward))
    if as_json:
        print(json.dumps({"seconds": total, "rounds": rounds, "operations": {name: vars(cost) for name, cost in rows}}))
        return 0
    inside = sum(c.forward + c.backward for c in costs.values()) / rounds
    print(f"{job.model}, {size} images on one thread, NumPy {np.__version__}: {total * 1e3:.0f} ms")
    print(f"{'operation':24s} {'calls':>6s} {'forward':>10s} {'backward':>10s} {'share':>7s} {'kept':>9s}")
    for name, c in rows:
        forward, backward = (1e3 * seconds / rounds for seconds in (c.forward, c.backward))
        times = f"{forward:7.1f} ms {backward:7.1f} ms {(forward + backward) / 1e3 / total:7.1%}"
        print(f"{name:24s} {c.calls // rounds:6d} {times} {c.kept / rounds / 1e6:6.1f} MB")
    print(f"{'engine, optimiser':24s} {'':6s} {(total - inside) * 1e3:7.1f} ms {'':10s} {1 - inside / total:7.1%}")
    return 0
