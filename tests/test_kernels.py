"""Compile evidence: kernel A built for sm_90 in every configuration, read from ptxas' record and the SASS.

It needs no GPU, and a process in which Triton compiles: the audit runs without TRITON_INTERPRET.
"""

from __future__ import annotations

import csv
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [pytest.mark.triton, pytest.mark.slow]

# 4 schedulers of a multiprocessor issue 128 lanes a cycle: at 1.7 GHz and 132 multiprocessors 32 per id make
# 0.9e12 ids/s, which is 7 TB/s of float32 pairs, and of bfloat16 pairs the 3.35 TB/s of an H100's memory.
MOST_INSTRUCTIONS_PER_ID = 32

# A split's stores come before its ticket for the whole block and device, the others' before what the last one loads.
HAND_OVER = "store barrier fence ticket invalidate barrier load"


def python(*arguments):
    """Run a Python in which Triton compiles, and return what it printed."""
    folder = Path(importlib.util.find_spec("specnb_kernels").origin).parent.parent
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def table():
    return list(csv.DictReader(python("-m", "specnb_kernels.audit").splitlines()))


def layout(rows, name):
    """Return the rows of the table with that memory layout, of which there must be some."""
    found = [row for row in rows if name in row["configuration"].split()]
    assert found
    return found


def test_every_pair_of_types_is_audited(table):
    types = ("fp16", "bf16", "fp32", "fp64")
    expected = {(p, q) for p in types for q in (*types, "one-hot")}
    assert {tuple(row["configuration"].split()[:2]) for row in layout(table, "aligned")} == expected


def test_nothing_is_spilled_or_in_local_memory(table):
    assert [row for row in table if row["spills"] != "0" or row["local bytes"] != "0"] == []


def test_no_multiply_add_is_fused_and_nothing_is_approximated(table):
    assert [row for row in table if row["fused"] != "0" or row["approximate"] != "0"] == []


def test_aligned_rows_are_streamed_by_16_byte_loads_alone(table):
    loads = [(row["wide loads"] != "0", row["other loads"]) for row in layout(table, "aligned")]
    assert loads == [(True, "0")] * len(loads)


@pytest.mark.parametrize(("name", "wide"), [("unaligned", "0"), ("strided", "0"), ("half", "1")])
def test_a_wide_load_needs_alignment(table, name, wide):
    assert {row["wide loads"] for row in layout(table, name)} == {wide}


def test_streaming_stays_below_the_issue_limit(table):
    counts = {row["configuration"]: float(row["instructions per id"]) for row in layout(table, "aligned")}
    busy = {name: n for name, n in counts.items() if n > MOST_INSTRUCTIONS_PER_ID}
    assert {name: n for name, n in busy.items() if "fp64" not in name} == {}  # 8 bytes an id take longer to load


def test_splits_hand_over_in_order(table):
    assert {row["hand-over"] for row in table} == {HAND_OVER}


def test_the_readme_tells_these_numbers(table):
    if importlib.metadata.version("triton").split(".")[:2] != ["3", "9"]:
        pytest.skip("the README tells the numbers of Triton 3.9")
    readme = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| ((?:b?float\d+), .*) \| (\d+) \| (\d+) \| ([\d.]+) \|$", readme, re.MULTILINE)
    assert len(found) == 6
    rows = {row["configuration"]: row for row in table}
    for name, *numbers in found:
        p, q, layout = [*name.replace("bfloat", "bf").replace("float", "fp").split(", "), "aligned"][:3]
        row = rows[f"{p} {q} {layout} seed"]
        assert [row[column] for column in ("registers", "wide loads", "instructions per id")] == numbers


def test_sizes_are_no_reason_to_compile_again():
    code = """
from specnb_kernels.audit import Configuration, compiled
sizes = ((0, 128), (1, 1024), (4, 50304), (7, 128256))
print(len({compiled(Configuration(gamma=gamma, width=width)).hash for gamma, width in sizes}))
print(len({compiled(Configuration(gamma=gamma)).hash for gamma in (4, 20)}))
"""
    assert python("-c", code).split() == ["1", "2"]


def test_the_audit_sees_what_it_must_refuse():
    """Lines of SASS as cuobjdump prints them, with everything in them that the other tests rule out."""
    from specnb_kernels import audit

    code = audit.instructions(
        """
        /*0a10*/              @!P0 LDG.E.64 R8, desc[UR8][R4.64] ;  /* 0x0000000804088981 */
        /*0a20*/                   DFMA R2, R2, R4, R6 ;
        /*0a30*/                   STL [R1], R2 ;
        /*0a40*/               @P1 BRA 0xa10 ;
        /*0a50*/                   LDG.E.U16 R8, desc[UR8][R4.64] ;
        """
    )
    assert [i.opcode for i in code] == ["LDG.E.64", "DFMA", "STL", "BRA", "LDG.E.U16"]
    assert [audit.load_bytes(i) for i in code] == [8, 0, 0, 0, 2]
    assert audit.streaming_loop(code) == code[:4]
