"""Evidence that needs no GPU: what the compiler made of the kernels, and the bytes that they touch.

`python -m specnb_kernels.audit` prints a table, a line per compiled kernel and configuration and one per input whose
bytes were counted, and ends with status 1 if a line breaks a bar. `--csv FILE` writes it, `--quick` leaves out all
chips but the H100 and all vocabularies but one.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from specnb_kernels.compiling import CONFIGURATIONS, OTHER_CHIPS, Configuration, compiled
from specnb_kernels.sass import division, evidence, hand_over, load_bytes

Line = dict[str, Any]


class Chip(NamedTuple):
    """What limits a streaming loop: from the makers' sheets that data/chips.csv names."""

    name: str
    tflops: float  # float32, 10^12 per second; a fused multiply-add of one lane counts as two
    bandwidth: float  # 10^12 bytes per second

    @property
    def instructions(self) -> float:
        """Lanes' instructions per second, 10^12, at the clock of its sheet; of an A100 those in float32 alone."""
        return self.tflops / 2


CHIPS = {80: Chip("A100 80GB SXM", 19.5, 2.039), 90: Chip("H100 SXM", 66.9, 3.35), 100: Chip("B200", 75.0, 7.7)}

MOST_BYTES = {"token fp32 probabilities": 1.10, "token bf16 logits": 1.15}  # over the least, where every row is needed
LEAST_SHARE = 0.70  # of an H100's bandwidth that the pass over bfloat16 logits must reach by its instructions


def summary(c: Configuration, name: str, kernel: Any) -> Line:
    """Return the table's line of a kernel compiled in configuration c."""
    e, chip = evidence(kernel), CHIPS[c.arch]
    opcodes = Counter(i.opcode.split(".")[0] for i in e.code)
    beyond = {name: opcodes[name] - division(e.divisions)[name] for name in ("DFMA", "FFMA", "MUFU")}
    paired = name.split()[0] in ("verify", "prefixes") and c.q is not None
    width = c.p.itemsize + (c.q.itemsize if paired and c.q is not None else 0)
    small = 4 if name.startswith("thresholds") else 0  # a tile's largest logit, which may tell to pass it over
    streamed = sum(map(load_bytes, e.loop)) - (small if any(load_bytes(i) == small for i in e.loop) else 0)
    each = len(e.loop) / streamed * width if streamed else 0.0
    share = chip.instructions / each * width / chip.bandwidth if each else 1.0
    return {
        "kind": "compiled",
        "rule": c.rule,
        "kernel": name,
        "configuration": str(c),
        "arch": f"sm_{c.arch}",
        "registers": e.registers,
        "shared bytes": e.shared,
        "spills": opcodes["STL"] + opcodes["LDL"],
        "local bytes": e.stack + e.local,
        "divisions": e.divisions,
        "fused": abs(beyond["FFMA"]) + abs(beyond["DFMA"]),
        "approximate": abs(beyond["MUFU"]),
        "wide loads": sum(i.opcode.startswith("LDG.E.128") for i in e.loop),
        "other loads": sum(0 < load_bytes(i) < 16 for i in e.loop),
        "instructions per id": round(each, 1),
        "share of bandwidth": round(min(share, 1.0), 3),
        "limit": "memory" if share >= 1 else "issue",
        "instructions": len(e.code),
        "hand-over": hand_over(e.code),
    }


def summaries(c: Configuration) -> list[Line]:
    """Return the table's lines for configuration c, one per kernel."""
    return [summary(c, name, kernel) for name, kernel in compiled(c).items()]


def counted(widths: list[int]) -> list[Line]:
    """Return the table's lines of counted bytes, from a process in which Triton interprets."""
    command = [sys.executable, "-m", "specnb_kernels.touched", *map(str, widths)]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    text = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [
        {"kind": "counted", "rule": line["way"].split()[0], "configuration": line["way"], "input": line["outcome"],
         "load": line["load"], "vocabulary": line["vocabulary"], "bytes": line["bytes"],
         "least bytes": line["least bytes"], "bytes per least": line["ratio"]}
        for line in csv.DictReader(text.splitlines())
    ]  # fmt: skip


def failures(line: Line) -> list[str]:
    """Return the bars that a line of the table breaks."""
    if line["kind"] == "counted":
        # A rejection makes kernel B read a row pair again, and those behind it for nothing: that is told, not barred.
        barred = line["input"] == "all accepted" or "probabilities" in line["configuration"]
        most = MOST_BYTES[line["configuration"]]
        return [f"touches more than {most} of the least bytes"] * (barred and float(line["bytes per least"]) > most)
    names, kernel = line["configuration"].split(), line["kernel"]
    aligned, h100 = "aligned" in names and kernel != "compare", line["arch"] == "sm_90"
    formed = "logits" in names or "filtered" in names
    single = "fp32" in names[:2] and not formed
    narrow_loads = line["other loads"] > kernel.startswith("thresholds") or not line["wide loads"]
    slow_pass = kernel == "masses" and "logits" in names and line["share of bandwidth"] < LEAST_SHARE
    bars = {
        "spills registers": line["spills"] or line["local bytes"],
        "fuses or approximates": line["fused"] or line["approximate"],
        "loads less than 16 bytes": aligned and narrow_loads,
        "is bound by instructions": aligned and h100 and single and line["limit"] != "memory",
        f"stays below {LEAST_SHARE} of bandwidth": aligned and h100 and slow_pass,
    }
    return [bar for bar, broken in bars.items() if broken]


def lines(quick: bool) -> Iterator[Line]:
    """Return the table's lines as they come, the slowest first."""
    configurations = CONFIGURATIONS if quick else CONFIGURATIONS + OTHER_CHIPS
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        bytes_touched = pool.submit(counted, [32000] if quick else [32000, 128256])
        yield from itertools.chain.from_iterable(pool.map(summaries, configurations))
        yield from bytes_touched.result()


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and return 1 if a line breaks a bar."""
    parser = argparse.ArgumentParser(prog="python -m specnb_kernels.audit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the H100 alone, and one vocabulary")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    options = parser.parse_args(arguments)
    table = list(lines(options.quick))
    names = list(dict.fromkeys(itertools.chain.from_iterable(table)))
    with (options.csv or Path(os.devnull)).open("w", encoding="utf-8", newline="") as file:
        for output in (sys.stdout, file):
            writer = csv.DictWriter(output, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
    broken = [(line, bar) for line in table for bar in failures(line)]
    for line, bar in broken:
        told = " ".join(str(line[k]) for k in ("rule", "kernel", "configuration", "arch", "input") if k in line)
        print(f"{told} {bar}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
