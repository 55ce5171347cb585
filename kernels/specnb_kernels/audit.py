"""Compile evidence that needs no GPU: what ptxas records and the SASS of kernel A say, built for sm_90.

`python -m specnb_kernels.audit` prints a line per configuration. Each is compiled as a launch would compile it:
from the arguments that the launcher builds, specialised by Triton's own launch path.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget

from specnb_kernels.launch import arguments
from specnb_kernels.verify import verify_kernel

FLOATS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class Configuration:
    """One way to call the kernel: the rows' types and layout, how drafts are declared, where randomness comes from."""

    p: torch.dtype = torch.float32
    q: torch.dtype | None = torch.float32
    layout: str = "aligned"  # aligned, unaligned (odd row strides), half (q's alone are odd), strided (every other id)
    optional: bool = False  # lengths and onehot are given
    randomness: str = "seed"  # seed, seeds (a key and a position per row), uniforms
    gamma: int = 4
    width: int = 8192

    def __str__(self) -> str:
        """Return a name such as "fp32 one-hot aligned seed"."""
        q = "one-hot" if self.q is None else FLOATS[self.q]
        extras = ["ragged"] * self.optional + [f"gamma {self.gamma}"] * (self.gamma != 4)
        return " ".join([FLOATS[self.p], q, self.layout, self.randomness, *extras])


CONFIGURATIONS = [
    *(Configuration(p, q) for p, q in itertools.product(FLOATS, [*FLOATS, None])),
    *(Configuration(p, q, "unaligned") for p in FLOATS for q in (p, None)),
    *(Configuration(layout=layout) for layout in ("half", "strided")),
    *(Configuration(randomness=randomness) for randomness in ("seeds", "uniforms")),
    *(Configuration(optional=True, randomness=randomness) for randomness in ("seed", "seeds", "uniforms")),
    Configuration(gamma=20),
]


class Instruction(NamedTuple):
    """One line of SASS."""

    address: int
    opcode: str
    operands: str


@dataclass(frozen=True)
class Evidence:
    """What ptxas recorded in one compiled kernel, and its disassembly."""

    registers: int
    stack: int  # bytes per thread
    local: int  # bytes of local memory per thread besides
    code: list[Instruction]
    loop: list[Instruction]  # the streaming loop alone


def example(c: Configuration) -> tuple[dict, dict]:
    """Return the kernel arguments and compiler options of a launch in configuration c."""
    p_odd, q_odd = {"unaligned": (1, 1), "half": (0, 1)}.get(c.layout, (0, 0))
    step = 2 if c.layout == "strided" else 1
    span = step * c.width
    p = torch.empty(1, c.gamma + 1, span + p_odd, dtype=c.p)[..., :span:step]
    q = None if c.q is None else torch.empty(1, c.gamma, span + q_odd, dtype=c.q)[..., :span:step]
    draft, per_row = torch.zeros(1, c.gamma, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    keys = per_row if c.randomness == "seeds" else None
    uniforms = torch.zeros(1, c.gamma + 1, dtype=torch.float64) if c.randomness == "uniforms" else None
    lengths, onehot = (per_row, per_row.bool()) if c.optional else (None, None)
    kernel_arguments, _, options = arguments(draft, q, p, lengths, onehot, keys, keys, uniforms, 0, 0, 0, 2)
    return kernel_arguments, options


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


def compiled(c: Configuration):
    """Return the kernel as a launch in configuration c would compile and specialise it for sm_90."""
    if not hasattr(verify_kernel, "params"):
        raise RuntimeError("TRITON_INTERPRET is set; the audit compiles, so run it in a process without it")
    triton.runtime.driver.set_active(Target())
    kernel_arguments, options = example(c)
    return verify_kernel.warmup(grid=(1, 1), **kernel_arguments, **options)


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
    return max(loops, key=lambda loop: (max(map(load_bytes, loop)), -len(loop)))


def evidence(c: Configuration) -> Evidence:
    """Compile configuration c for sm_90; read the resources that ptxas recorded in the cubin, and its SASS."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled(c).asm["cubin"])
        recorded = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", _cuobjdump("-res-usage", cubin))
        code = instructions(_cuobjdump("-sass", cubin))
    return Evidence(*map(int, recorded.groups()), code, streaming_loop(code))


def summary(c: Configuration) -> dict[str, str | int | float]:
    """Return the numbers of configuration c that the tests bound and the table shows."""
    e = evidence(c)
    opcodes = Counter(i.opcode.split(".")[0] for i in e.code)
    ids = sum(map(load_bytes, e.loop)) / (c.p.itemsize + (0 if c.q is None else c.q.itemsize))
    return {
        "configuration": str(c),
        "registers": e.registers,
        "spills": opcodes["STL"] + opcodes["LDL"],
        "local bytes": e.stack + e.local,
        "fused": opcodes["FFMA"] + opcodes["DFMA"],
        "approximate": opcodes["MUFU"],
        "wide loads": sum(i.opcode.startswith("LDG.E.128") for i in e.loop),
        "other loads": sum(0 < load_bytes(i) < 16 for i in e.loop),
        "instructions per id": round(len(e.loop) / ids, 1),
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
    ticket = kept.index("ticket")
    return " ".join(kept[ticket - 3 : ticket + 4])


def main() -> None:
    """Print the table."""
    for number, c in enumerate(CONFIGURATIONS):
        row = summary(c)
        if number == 0:
            print(",".join(row))
        print(",".join(map(str, row.values())), flush=True)


if __name__ == "__main__":
    main()
