"""The GPU script: `python -m specnb_kernels.bench` proves bits, then tells latencies, within six minutes.

First the gate: the reference's verdicts, bit for bit, on random and adversarial inputs and strides beyond 2^31; replays
of graphs on two streams with inputs that change; compute-sanitizer where it is installed. No time is told if one of
them fails. Then latencies, cold (buffers rotated past the cache) and hot, beside other samplers. Sections that find no
time or no library are reported as such. `--dry-run` walks through all of it on the CPU, in Triton's interpreter, on
tiny sizes; its times mean nothing.

The kernels know nothing of specnb: the reference and the torch baseline are modules named on the command line and
imported when the script runs, whatever they are, and without the reference there is no gate and so no time.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from specnb_kernels import bench_gate
from specnb_kernels.bench_inputs import Size, step
from specnb_kernels.bench_peers import ways
from specnb_kernels.bench_timing import calls, copies, copy_bandwidth, predicted, timed

COLUMNS = ("device", "way", "source", "outcome", "vocabulary", "batch", "gamma", "buffers", "mode", "median_us",
           "p20_us", "p80_us", "repeats", "share_of_copy", "over_predicted", "note")  # fmt: skip
RESERVE = 20.0  # seconds that writing and leaving may take


def sizes(dry: bool) -> Iterator[Size]:
    """Return the workloads, the most telling first: a run that is cut short lacks the last ones."""
    vocabularies, batches = ((33,), (1,)) if dry else ((128256, 32000, 256000), (1, 64, 8, 256))
    for vocabulary in vocabularies:
        for batch in batches:
            for source in ("logits", "probabilities"):
                for outcome in ("mixed", "rejected"):
                    yield Size(batch, 1 if dry else 4, vocabulary, source, outcome)


def environment(device: torch.device) -> dict[str, Any]:
    """Return what the numbers depend on: device, clocks as found, driver, versions."""
    found: dict[str, Any] = {
        "torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version(),
        "system": platform.platform(), "device": "CPU, interpreted",
    }  # fmt: skip
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"device": properties.name, "multiprocessors": properties.multi_processor_count,
                  "memory": properties.total_memory, "cache": properties.L2_cache_size,
                  "cuda": torch.version.cuda}  # fmt: skip
        asked = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"],
                                  capture_output=True, text=True, timeout=10, check=True).stdout  # fmt: skip
            values = map(str.strip, told.splitlines()[0].split(","))
            found["nvidia-smi"] = dict(zip(asked.split(","), values, strict=True))
    return found


def latencies(size: Size, device: torch.device, backend: Any, shared: dict[str, Any], dry: bool,
              left: Callable[[], float]) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Return a line per way and state of the cache; what failed is a line with a note."""
    b = step(size, device)
    for name, make in ways(size, backend, dry).items():
        line: dict[str, Any] = {"device": shared["device"], "way": name, **size._asdict()}
        slow = name == "transformers, row loop"
        try:
            way = make()
            for cold in (True, False):
                if left() < 0:
                    yield line | {"note": "no time left"}
                    return
                bound, mode = calls(way, copies(b, cold, shared["cache"], 2 if slow else 16), dry)
                times = timed(bound, 0.2, dry)
                share = size.least_bytes() / (times.median * 1e-6) / shared["copy_bandwidth"]
                ours = name == "specnb kernels"
                yield line | {
                    "buffers": "cold" if cold else "hot", "mode": mode, "median_us": round(times.median, 2),
                    "p20_us": round(times.p20, 2), "p80_us": round(times.p80, 2), "repeats": times.repeats,
                    "share_of_copy": round(share, 3),
                    "over_predicted": round(times.median / predicted(size), 3) if ours else None,
                }  # fmt: skip
        except Exception as error:  # a library that is missing, or not as expected, is no reason to stop
            yield line | {"note": f"{type(error).__name__}: {error}".splitlines()[0][:160]}


def gate(options: argparse.Namespace, device: torch.device, left: Callable[[], float]) -> dict[str, Any]:
    """Return what the gate found, with its failures under "failed"."""
    reference = importlib.import_module(options.reference)
    failed = bench_gate.equality(reference, device, options.dry_run)
    found: dict[str, Any] = {"equality": failed or "every case"}
    soaked = bench_gate.soak(device, 4 if options.dry_run else 300, options.dry_run, lambda: left() - 240)
    failed = failed + [problem for problem in soaked if "stopped for time" not in problem]
    found["soak"] = soaked or "every replay"
    found["sanitizer"] = "dry run" if options.dry_run else bench_gate.sanitizer(min(60.0, left() - 200))
    failed += [f"sanitizer {v}" for v in found["sanitizer"].values() if "FAILED" in v] if not options.dry_run else []
    return found | {"failed": failed}


def few(device: torch.device) -> None:
    """Run one small verdict by each rule and source, for compute-sanitizer."""
    for source in ("probabilities", "logits"):
        b = step(Size(4, 2, 3000, source, "mixed"), device)
        for rule in bench_gate.RULES:
            bench_gate.decide(source, b, rule)
    torch.cuda.synchronize()


def main(arguments: list[str] | None = None) -> int:
    """Run the gate and the measurements; returns 1 if the gate is closed."""
    parser = argparse.ArgumentParser(prog="python -m specnb_kernels.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="walk through it on the CPU, on tiny sizes")
    parser.add_argument("--seconds", type=float, default=350.0, help="when to stop measuring")
    parser.add_argument("--reference", default="specnb.backends.numpy", help="module that decides what is right")
    parser.add_argument("--torch-backend", default="specnb.backends.torch", help="module to compare with; '' for none")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for kernels_gpu.csv and .json")
    parser.add_argument("--few", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    dry = options.dry_run
    start = time.monotonic()
    left = lambda: options.seconds - RESERVE - (time.monotonic() - start) + 1e6 * dry  # noqa: E731  passed around
    if dry and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("a dry run takes TRITON_INTERPRET=1")
    if not dry and not torch.cuda.is_available():
        parser.error("no CUDA device; try TRITON_INTERPRET=1 python -m specnb_kernels.bench --dry-run")
    device = torch.device("cpu" if dry else "cuda")
    if options.few:
        few(device)
        return 0

    found = environment(device)
    print(json.dumps(found, indent=1), flush=True)
    found["gate"] = gate(options, device, left)
    print(json.dumps(found["gate"], indent=1), flush=True)
    name = "kernels_dry_run" if dry else "kernels_gpu"
    options.out.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    if not found["gate"]["failed"]:
        found["copy_bandwidth"] = copy_bandwidth(device, 2**12 if dry else 2**30, dry)
        print(f"a copy moves {found['copy_bandwidth'] / 1e12:.2f} TB/s", flush=True)
        backend = importlib.import_module(options.torch_backend) if options.torch_backend else None
        shared = {"device": found["device"], "cache": found.get("cache", 0), "copy_bandwidth": found["copy_bandwidth"]}
        skipped = []
        with (options.out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            for size in sizes(dry):
                if left() < 0:
                    skipped.append(str(size))
                    continue
                for line in latencies(size, device, backend, shared, dry, left):
                    writer.writerow(line)
                    file.flush()
                    lines.append(line)
                    print(",".join(str(line.get(k, "")) for k in COLUMNS), flush=True)
        found["skipped for time"] = skipped
    found["seconds"] = round(time.monotonic() - start, 1)
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if found["gate"]["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
