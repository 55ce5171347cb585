"""What is in a compiled kernel: ptxas' record, the disassembly, and what can be read from it."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import triton


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
    shared: int  # bytes per program


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
    """Return the loop over whole tiles: with the widest loads, that make integers if there are such, the shortest.

    A branch back from code behind the ticket, which ptxas puts last, closes no loop.
    """
    loops = []
    for branch in code:
        target = re.search(r"0x([0-9a-f]+)", branch.operands) if branch.opcode.startswith("BRA") else None
        if target and int(target[1], 16) < branch.address:
            loop = [i for i in code if int(target[1], 16) <= i.address <= branch.address]
            loops += [] if any(i.opcode.startswith("ATOMG") for i in loop) else [loop]

    def rank(loop):
        return max(map(load_bytes, loop)), any(i.opcode.startswith("F2I") for i in loop), -len(loop)

    return max(loops, key=rank, default=[])


def evidence(kernel) -> Evidence:
    """Read what ptxas recorded in a compiled kernel's cubin, the SASS, and the divisions in the PTX."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        recorded = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", _cuobjdump("-res-usage", cubin))
        code = instructions(_cuobjdump("-sass", cubin))
    divisions = kernel.asm["ptx"].count("div.rn.f64")
    loop = streaming_loop(code)
    return Evidence(*map(int, recorded.groups()), code, loop, divisions, kernel.metadata.shared)


def division(divisions: int) -> Counter[str]:
    """Return what ptxas expands so many float64 divisions into: each a refined estimate, and a slow path for all.

    Its fused operations are how a quotient comes out as the nearest float64. Any other would round once too seldom.
    """
    return Counter(DFMA=7 * divisions + 10, FFMA=divisions, MUFU=divisions + 1) if divisions else Counter()


def hand_over(code: list[Instruction]) -> str:
    """Return the steps around the ticket, in the order of the code, by which a split hands over to the last one."""
    names = {"STG": "store", "BAR": "barrier", "MEMBAR": "fence", "ATOMG": "ticket", "CCTL": "invalidate"}
    steps = []
    for opcode in (i.opcode for i in code):
        shared = opcode.startswith("LDG") and ".STRONG.GPU" in opcode
        steps.append("load" if shared else names.get(opcode.split(".")[0]))
    kept = [step for step, _ in itertools.groupby(filter(None, steps))]
    return " ".join(kept[kept.index("ticket") - 3 :][:7]) if "ticket" in kept else ""
