"""minicait bench: speed and memory on this machine, beside PyTorch if asked, and where the time goes."""

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
from ..bench.worker import SIDES, own_step
from ..machine import cpu_count
from ..models import create_model, find_model
from ..train.gradients import default_micro_batch
from ..train.recipe import PRODUCTS
from . import options

EXAMPLES = """examples:
  minicait bench                                                  one training step of cait_xxs24_224
  minicait bench --against timm                                   beside PyTorch (pip install -e '.[compare]')
  minicait bench --model cait_tiny_32 --batch 128 --profile       time and memory by operation
  minicait bench --work predict --batch 1 --json
  minicait bench --device cuda --batch 64 --precision fp16        on a GPU
"""


def add_to(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("bench", help="measure speed and memory", epilog=EXAMPLES, formatter_class=raw)
    parser.add_argument("--model", default="cait_xxs24_224", help="a name of `minicait models` (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="images (default: %(default)s)")
    parser.add_argument("--work", default="train", choices=WORK, help="(default: %(default)s)")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda if it works, else cpu)")
    kinds = "in which matrices are multiplied; on a CPU only fp32 (default: %(default)s)"
    parser.add_argument("--precision", default="fp32", choices=list(PRODUCTS), help=kinds)
    parser.add_argument("--threads", type=int, metavar="N", help="(default: all CPUs this process may use)")
    parser.add_argument("--micro-batch", type=int, metavar="N", help="images in a piece (default: what suits)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="steps measured (default: %(default)s)")
    others = "measure this in turn, and print the ratios; compiled: by torch.compile; threads: without processes"
    parser.add_argument("--against", choices=[name for name in SIDES if name != "minicait"], help=others)
    parser.add_argument("--profile", action="store_true", help="time and memory by operation, on one thread")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    find_model(args.model)
    for name in ("batch", "rounds", "threads", "micro_batch"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}")
    if args.profile and args.against:
        raise ValueError("choose one of --profile and --against")
    if args.profile and args.device not in (None, "cpu"):
        raise ValueError("--profile measures on the CPU: a GPU goes on working while the next operation begins")
    device = "cpu" if args.profile else options.device(args)
    threads = args.threads or cpu_count()
    job = Job(args.model, args.batch, args.work, threads, args.micro_batch, device, args.precision)
    if args.profile:
        return _profile(job, args.rounds, args.json)
    sides = measure(job, ["minicait", *([args.against] if args.against else [])], args.rounds)
    least = _least(job, sides[0])
    if args.json:
        print(json.dumps({**vars(job), "sides": [vars(side) for side in sides], **least, **_ratios(sides)}))
        return 0
    what = "training step" if job.work == "train" else "prediction"
    where = f"{job.threads} threads" if job.device == "cpu" else f"{job.device}, {job.precision}"
    print(f"{job.model}, batch {job.batch}, {what}, {where}, {args.rounds} rounds, {platform.machine()}")
    print(f"{'':10s} {'least':>9s} {'median':>9s} {'images/s':>9s} {'GFLOP/s':>9s} {'peak memory':>12s}")
    for side in sides:
        m = side.median
        print(f"{side.name:10s} {min(side.seconds):7.3f} s {m:7.3f} s {job.batch / m:9.1f} {job.gigaflop() / m:9.1f} "
              f"{side.megabytes:9.0f} MB")  # fmt: skip
    if least:
        print("products of matrices at {gemm_gflops:.0f} GFLOP/s would take {floor:.3f} s: {reached:.0%} reached"
              .format(**least))  # fmt: skip
    for name, value in _ratios(sides).items():
        print(f"{name.replace('_', ' ')}: {value:.2f}")
    return 0


def _least(job: Job, side: Measured) -> dict[str, float]:
    """What the products of matrices alone would take, and the part of the CPU's rate that was reached."""
    if job.device != "cpu":
        return {}
    rate = gemm_rate(job.threads)
    floor = job.gigaflop() / rate
    return {"gemm_gflops": rate, "floor": floor, "reached": floor / side.median}


def _ratios(sides: list[Measured]) -> dict[str, float]:
    """Of steps that followed each other, their median; and of the peaks."""
    if len(sides) < 2:
        return {}
    ours, other = sides
    faster = statistics.median(b / a for a, b in zip(ours.seconds, other.seconds, strict=True))
    return {"times_as_fast": faster, "memory_ratio": ours.megabytes / other.megabytes}


def _profile(job: Job, rounds: int, as_json: bool) -> int:
    """Of one piece of the batch, on one thread."""
    net = create_model(job.model, 10, drop_path_rate=0.0)
    size = job.micro_batch or default_micro_batch(net, 2 * job.batch)  # which is no more than half of that
    step = own_step(net, size, job.work, threads=1, micro_batch=size)
    step()
    before = time.perf_counter()
    with profiled(net) as costs:
        for _ in range(rounds):
            step()
    whole = (time.perf_counter() - before) / rounds
    rows = sorted(costs.items(), key=lambda item: -(item[1].forward + item[1].backward))
    if as_json:
        print(json.dumps({"seconds": whole, "rounds": rounds, "operations": {name: vars(cost) for name, cost in rows}}))
        return 0
    inside = sum(c.forward + c.backward for c in costs.values()) / rounds
    print(f"{job.model}, {size} images on one thread, NumPy {np.__version__}: {whole * 1e3:.0f} ms")
    print(f"{'operation':24s} {'calls':>6s} {'forward':>10s} {'backward':>10s} {'share':>7s} {'kept':>9s}")
    for name, c in rows:
        forward, backward = (1e3 * seconds / rounds for seconds in (c.forward, c.backward))
        share = (forward + backward) / 1e3 / whole
        times = f"{forward:7.1f} ms {backward:7.1f} ms {share:7.1%}"
        print(f"{name:24s} {c.calls // rounds:6d} {times} {c.kept / rounds / 1e6:6.1f} MB")
    print(f"{'engine, optimiser':24s} {'':6s} {(whole - inside) * 1e3:7.1f} ms {'':10s} {1 - inside / whole:7.1%}")
    return 0
