"""minicait bench: speed and memory on this machine, also beside PyTorch, and time by operation."""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any

import numpy as np

from ..bench import WORK, Job, measure
from ..bench.batch import CLASSES
from ..bench.profile import profiled
from ..bench.summary import summary
from ..bench.table import PLAIN_PEER, ROWS, measured_rows
from ..bench.worker import SIDES, bench_step
from ..machine import cpu_count
from ..models import create_model, find_model
from ..train.micro_batch import default_micro_batch
from ..train.recipe import PRODUCTS
from . import options

EXAMPLES = """examples:
  minicait bench                                                  one training step of cait_xxs24_224
  minicait bench --against timm                                   beside PyTorch (pip install -e '.[compare]')
  minicait bench --against timm-bf16                              beside PyTorch in bfloat16, its fastest on a CPU
  minicait bench --table --against timm                           the standard table, in some minutes
  minicait bench --stochastic-depth --against timm                as the model is trained: some branches are dropped
  minicait bench --model lvvit_s_224 --batch 2 --against torch    beside a plain PyTorch module: timm has no LV-ViT
  minicait bench --model cait_tiny_32 --batch 128 --profile       time and memory by operation
  minicait bench --work predict --batch 1 --json                  latency of one image
  minicait bench --work folder --against timm                     throughput of JPEG files, decoding included
  minicait bench --device cuda --batch 64 --precision fp16        on a GPU
"""
MODEL, BATCH, FILES = "cait_xxs24_224", 8, 64
OF_A_ROW = ("model", "batch", "work", "stochastic_depth", "device", "precision", "micro_batch", "profile")


def add_to(commands: Any) -> None:
    parser = options.add_command(commands, "bench", _bench, "measure speed and memory", EXAMPLES)
    add = parser.add_argument_group("what to measure").add_argument
    add("--model", help=f"a name of `minicait models` (default: {MODEL})")
    add("--batch", type=int, metavar="N", help=f"images in a step (default: {BATCH}, of a folder {FILES})")
    add("--work", choices=list(WORK), help="train: a training step; predict: a prediction; folder: predictions of JPEG "
        "files, which are drawn for it, as `minicait predict` makes them (default: train)")  # fmt: skip
    add("--stochastic-depth", action="store_true",
        help="train with the model's published rate of stochastic depth, on both sides (default: none)")  # fmt: skip
    add("--table", action="store_true", help=f"measure the {len(ROWS)} rows of the standard table, on a CPU")
    add("--profile", action="store_true", help="time and memory by operation, on one thread")
    add = parser.add_argument_group("how").add_argument
    add("--against", choices=[name for name in SIDES if name != "minicait"],
        help="measure this in turn, and print ratios; torch: a plain PyTorch module, for models that timm lacks; "
        "bf16: autocast to bfloat16, on CPUs that have it; compiled: by torch.compile; threads: no processes"
        )  # fmt: skip
    add("--rounds", type=int, default=5, metavar="N", help="number of measured steps (default: %(default)s)")
    add("--json", action="store_true", help="print JSON")
    machine = parser.add_argument_group("machine")
    options.add_device(machine)
    add = machine.add_argument
    add("--precision", choices=list(PRODUCTS), help="of matrix products; on a CPU fp32 (default: fp32)")
    add("--threads", type=int, metavar="N", help="(default: all CPUs this process may use)")
    add("--micro-batch", type=int, metavar="N", help="images at a time (default: chosen by the model)")


def _bench(args: argparse.Namespace) -> int:
    options.check_positive(args, "batch", "rounds", "threads", "micro_batch")
    options.check_threads(args.threads)
    threads = args.threads or cpu_count()
    if args.table:
        if given := [name for name in OF_A_ROW if getattr(args, name)]:
            raise ValueError(f"--table has rows of its own; leave out {options.flag(given[0])}")
        if args.against not in (None, *PLAIN_PEER):
            raise ValueError(f"--table is measured against {' or '.join(PLAIN_PEER)}, not {args.against}")
        return _table(threads, args.rounds, args.against, args.json)
    name, work = args.model or MODEL, args.work or "train"
    find_model(name)
    if args.profile and args.against:
        raise ValueError("choose one of --profile and --against")
    if args.profile and args.device not in (None, "cpu"):
        raise ValueError("--profile needs the CPU: on a GPU, operations overlap")
    if args.profile and work == "folder":
        raise ValueError("--profile times operations of the model; choose --work train or predict")
    if args.profile and args.threads not in (None, 1):
        raise ValueError("--profile runs on one thread; leave out --threads")
    device = "cpu" if args.profile else options.device(args)
    batch = args.batch or (FILES if work == "folder" else BATCH)
    job = Job(name, batch, work, threads, args.micro_batch, device, args.precision or "fp32", args.stochastic_depth)
    if args.profile:
        return _profile(job, args.rounds, args.json)
    sides = measure(job, ["minicait", *([args.against] if args.against else [])], args.rounds)
    found = summary(job, sides)
    if args.json:
        print(json.dumps(found))
        return 0
    where = _count(job.threads, "thread") if job.device == "cpu" else f"{job.device}, {job.precision}"
    print(f"{_title(job)}, {where}, {_count(args.rounds, 'round')}, {platform.machine()}")
    print(f"{'':16s} {'min':>9s} {'median':>9s} {'images/s':>9s} {'GFLOP/s':>9s} {'peak memory':>12s}")
    for side in sides:
        least, median, speed = min(side.seconds), side.median, job.batch / side.median
        rates = f"{speed:9.1f} {job.gigaflop() / median:9.1f}"
        print(f"{side.name:16s} {least:7.3f} s {median:7.3f} s {rates} {side.megabytes:9.0f} MB")
    if "floor" in found:
        print("matrix products at {gemm_gflops:.0f} GFLOP/s would take {floor:.3f} s: {reached:.0%} reached"
              .format(**found))  # fmt: skip
    for ratio in ("times_as_fast", "memory_ratio"):
        if ratio in found:
            print(f"{ratio.replace('_', ' ')}: {found[ratio]:.2f}")
    if "on_cores" in found:
        _print_cores(sides[0].parent_cpu, sides[0].worker_cpu, found)
    return 0


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def _title(job: Any) -> str:
    depth = " with stochastic depth" if job.stochastic_depth else ""
    return f"{job.model}, batch {job.batch}, {WORK[job.work]}{depth}"


def _print_cores(parent: float, workers: float, found: dict[str, Any]) -> None:
    """Print the CPU time of a step, and the model of its time on more cores."""
    share, steps = parent / (parent + workers), found["on_cores"]
    print(f"CPU time of a step: {parent:.3f} s in the parent ({share:.1%}), {workers:.3f} s in worker processes")
    print(f"a model, not a measurement: the parent alone, then the busiest worker; {found['pieces']} pieces in "
          f"{found['leaves']} leaves")  # fmt: skip
    print(f"{'  cores':16s}" + "".join(f" {step['cores']:9d}" for step in steps))
    print(f"{'  step':16s}" + "".join(f" {step['seconds']:7.3f} s" for step in steps))
    print(f"{'  efficiency':16s}" + "".join(f" {step['efficiency']:9.0%}" for step in steps))


def _table(threads: int, rounds: int, against: str | None, as_json: bool) -> int:
    """Measure and print the standard table, row by row; exit code 2 if a row could not be measured."""
    rows = measured_rows(threads, rounds, against)
    machine = {"threads": threads, "rounds": rounds, "against": against, "machine": platform.machine()}
    if as_json:
        found = [{**row._asdict(), **result} for row, result in rows]
        print(json.dumps({**machine, "rows": found}))
        return 2 if any("error" in row for row in found) else 0
    failed = False
    for number, (row, result) in enumerate(rows):
        if not number:  # once the first is measured: an error of all rows needs no head of a table
            sizes = f"{_count(threads, 'thread')}, {_count(rounds, 'round')}"
            print(f"{sizes}, {platform.machine()}, minicait beside {against or 'nothing'}")
            print(f"{'':64s} {'ours':>9s} {'theirs':>9s} {'times':>6s} {'memory':>7s} {'floor':>6s}")
        failed |= "error" in result
        print(f"{_title(row):64s} {result.get('error') or _cells(result)}", flush=True)
    return 2 if failed else 0


def _cells(result: dict[str, Any]) -> str:
    """Seconds of both sides, times as fast, memory (a ratio, or MB if we are alone), share of the GEMM floor."""
    medians = [float(np.median(side["seconds"])) for side in result["sides"]]
    theirs, times, memory = "-", "-", f"{result['sides'][0]['megabytes']:.0f} MB"
    if len(medians) > 1:
        theirs, times = f"{medians[1]:.3f} s", f"{result['times_as_fast']:.2f}"
        memory = f"{result['memory_ratio']:.2f}"
    return f"{medians[0]:7.3f} s {theirs:>9s} {times:>6s} {memory:>7s} {result['reached']:6.0%}"


def _profile(job: Job, rounds: int, as_json: bool) -> int:
    """Profile one micro-batch on one thread."""
    model = create_model(job.model, CLASSES, drop_path_rate=job.drop_path_rate)
    size = job.micro_batch or default_micro_batch(model, 2 * job.batch, job.work == "train")  # at most half of that
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
