"""Compile evidence that needs no GPU: what ptxas records and the SASS of the kernels say, built for sm_90.

`python -m specnb_kernels.audit` prints a line per kernel and configuration. Each is compiled as a launch would compile
it: from the arguments that the launcher builds, specialised by Triton's own launch path.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget

from specnb_kernels.launch import Launch
from specnb_kernels.operators import launches

FLOATS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class Configuration:
    """One way to verify: the rows' types and layout, how drafts are declared, where randomness comes from, the rule."""

    p: torch.dtype = torch.float32
    q: torch.dtype | None = torch.float32
    layout: str = "aligned"  # aligned, unaligned (odd row strides), half (q's alone are odd), strided (every other id)
    optional: bool = False  # lengths and onehot are given
    randomness: str = "seed"  # seed, seeds (a key and a position per row), uniforms
    gamma: int = 4
    width: int = 8192
    rule: str = "token"

    def __str__(self) -> str:
        """Return a name such as "fp32 one-hot aligned seed"."""
        q = "one-hot" if self.q is None else FLOATS[self.q]
        extras = ["ragged"] * self.optional + [f"gamma {self.gamma}"] * (self.gamma != 4)
        return " ".join([FLOATS[self.p], q, self.layout, self.randomness, *extras])


PAIRS = list(itertools.product(FLOATS, [*FLOATS, None]))
CONFIGURATIONS = [
    *(Configuration(p, q) for p, q in PAIRS),
    *(Configuration(p, q, "unaligned") for p in FLOATS for q in (p, None)),
    *(Configuration(layout=layout) for layout in ("half", "strided")),
    *(Configuration(randomness=randomness) for randomness in ("seeds", "uniforms")),
    *(Configuration(optional=True, randomness=randomness) for randomness in ("seed", "seeds", "uniforms")),
    Configuration(gamma=20),
    *(Configuration(p, q, rule="block") for p, q in PAIRS),
    *(Configuration(p, q, "unaligned", rule="block") for p in FLOATS for q in (p, None)),
    *(Configuration(layout=layout, rule="block") for layout in ("half", "strided")),
    *(Configuration(optional=True, randomness=randomness, rule="block") for randomness in ("seeds", "uniforms")),
    Configuration(gamma=20, rule="block"),
    *(Configuration(p, None, rule="coupled") for p in FLOATS),
    *(Configuration(q=None, layout=layout, rule="coupled") for layout in ("unaligned", "strided")),
    Configuration(q=None, optional=True, randomness="seeds", gamma=20, rule="coupled"),
]


class Instruction(NamedTuple):
    """One line of SASS."""

    address: int
    opcode: str
    operands: str


@dataclass(frozen=True)
class Evidence:
    """What ptxas recorded in one compiled kernel, its disassembly, and its divisions."""

    registers: int
    stack: int  # bytes per thread
    local: int  # bytes of local memory per thread besides
    code: list[Instruction]
    loop: list[Instruction]  # the streaming loop alone
    divisions: int  # of float64, to the nearest


def example(c: Configuration) -> list[Launch]:
    """Return the launches of a verdict in configuration c."""
    p_odd, q_odd = {"unaligned": (1, 1), "half": (0, 1)}.get(c.layout, (0, 0))
    step = 2 if c.layout == "strided" else 1
    span = step * c.width
    p = torch.empty(1, c.gamma + 1, span + p_odd, dtype=c.p)[..., :span:step]
    q = None if c.q is None else torch.empty(1, c.gamma, span + q_odd, dtype=c.q)[..., :span:step]
    draft, per_row = torch.zeros(1, c.gamma, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    keys = per_row if c.randomness == "seeds" else None
    uniforms = torch.zeros(1, c.gamma + 1, dtype=torch.float64) if c.randomness == "uniforms" else None
    lengths, onehot = (per_row, per_row.bool()) if c.optional else (None, None)
    return launches(draft, q, p, lengths, onehot, keys, keys, uniforms, 0, 0, 0, 2, c.rule, splits=2)


class Target:
    """A driver without a device, so that Triton's own launch path compiles for sm_90 on any machine."""

    def get_current_target(self) -> GPUTarget:
        """Return what to compile for."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """Return the number of the device, which keys Triton's cache."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """Return a stream, on which nothing will run."""
        return 0


def compiled(c: Configuration) -> dict:
    """Return the kernels by name, as launches in configuration c would compile and specialise them for sm_90."""
    steps = example(c)
    if not all(hasattr(step.kernel, "params") for step in steps):
        raise RuntimeError("TRITON_INTERPRET is set; the audit compiles, so run it in a process without it")
    triton.runtime.driver.set_active(Target())
    return {
        step.kernel.__name__.removesuffix("_kernel"): step.kernel.warmup(grid=(1, 1), **step.arguments, **step.options)
        for step in steps
    }


def _cuobjdump(option: str, cubin: Path) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, option, cubin], capture_output=True, text=True, check=True).stdout


def instructions(sass: str) -> list[Instruction]:
    """Return the instructions of a disassembly."""
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)([^;]*);", sass)
    return [Instruction(int(address, 16), opcode, operands) for address, opcode, operands in lines]


def load_bytes(instruction: Instruction) -> int:
    """Return how many bytes a thread reads by a global load, 0 for other instructions.

    >>> load_bytes(Instruction(0, "LDG.E.128", "")), load_bytes(Instruction(0, "LDG.E", ""))
    (16, 4)
    """
    if not instruction.opcode.startswith("LDG"):
        return 0
    width = re.search(r"\.U?(\d+)", instruction.opcode)
    return int(width[1]) // 8 if width else 4


def streaming_loop(code: list[Instruction]) -> list[Instruction]:
    """Return the loop over whole tiles: the one with the widest loads, the shortest of several."""
    loops = []
    for branch in code:
        target = re.search(r"0x([0-9a-f]+)", branch.operands) if branch.opcode.startswith("BRA") else None
        if target and int(target[1], 16) < branch.address:
            loops.append([i for i in code if int(target[1], 16) <= i.address <= branch.address])
    return max(loops, key=lambda loop: (max(map(load_bytes, loop)), -len(loop)), default=[])


def evidence(kernel) -> Evidence:
    """Read what ptxas recorded in a compiled kernel's cubin, the SASS, and the divisions in the PTX."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        recorded = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", _cuobjdump("-res-usage", cubin))
        code = instructions(_cuobjdump("-sass", cubin))
    divisions = kernel.asm["ptx"].count("div.rn.f64")
    return Evidence(*map(int, recorded.groups()), code, streaming_loop(code), divisions)


def division(divisions: int) -> Counter[str]:
    """Return what ptxas expands so many float64 divisions into: each a refined estimate, and a slow path for all.

    Its fused operations are how a quotient comes out as the nearest float64. Any other would round once too seldom.
    """
    return Counter(DFMA=7 * divisions + 10, FFMA=divisions, MUFU=divisions + 1) if divisions else Counter()


def summary(c: Configuration, kernel) -> dict[str, str | int | float]:
    """Return the numbers of a kernel compiled in configuration c that the tests bound and the table shows."""
    e = evidence(kernel)
    opcodes = Counter(i.opcode.split(".")[0] for i in e.code)
    beyond = {name: opcodes[name] - division(e.divisions)[name] for name in ("DFMA", "FFMA", "MUFU")}
    ids = sum(map(load_bytes, e.loop)) / (c.p.itemsize + (0 if c.q is None else c.q.itemsize))
    return {
        "registers": e.registers,
        "spills": opcodes["STL"] + opcodes["LDL"],
        "local bytes": e.stack + e.local,
        "divisions": e.divisions,
        "fused": abs(beyond["FFMA"]) + abs(beyond["DFMA"]),
        "approximate": abs(beyond["MUFU"]),
        "wide loads": sum(i.opcode.startswith("LDG.E.128") for i in e.loop),
        "other loads": sum(0 < load_bytes(i) < 16 for i in e.loop),
        "instructions per id": round(len(e.loop) / ids, 1) if ids else 0.0,
        "instructions": len(e.code),
        "hand-over": hand_over(e.code),
    }


def hand_over(code: list[Instruction]) -> str:
    """Return the steps around the ticket, in the order of the code, by which a split hands over to the last one."""
    names = {"STG": "store", "BAR": "barrier", "MEMBAR": "fence", "ATOMG": "ticket", "CCTL": "invalidate"}
    steps = []
    for opcode in (i.opcode for i in code):
        shared = opcode.startswith("LDG") and ".STRONG.GPU" in opcode
        steps.append("load" if shared else names.get(opcode.split(".")[0]))
    kept = [step for step, _ in itertools.groupby(filter(None, steps))]
    return " ".join(kept[kept.index("ticket") - 3 :][:7]) if "ticket" in kept else ""


def summaries(c: Configuration) -> list[dict[str, str | int | float]]:
    """Return the table's lines for configuration c, one per kernel."""
    kernels = compiled(c).items()
    return [{"rule": c.rule, "kernel": name, "configuration": str(c)} | summary(c, kernel) for name, kernel in kernels]


def main() -> None:
    """Print the table."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        lines = itertools.chain.from_iterable(pool.map(summaries, CONFIGURATIONS))
        for number, line in enumerate(lines):
            if number == 0:
                print(",".join(line))
            print(",".join(map(str, line.values())), flush=True)


if __name__ == "__main__":
    main()
