"""Compile evidence: every kernel built for sm_90 in every configuration, read from ptxas' record and the SASS.

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

# At the clock of its sheet an H100 reads 3.35 TB/s of bfloat16 logits at 20 instructions per id; this is 0.75 of it.
MOST_INSTRUCTIONS_PER_LOGIT = 26.6

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
def lines():
    """Return the audit's lines; it would end with a status of 1 if one of them broke a bar of its own."""
    return list(csv.DictReader(python("-m", "specnb_kernels.audit", "--quick").splitlines()))


@pytest.fixture(scope="module")
def table(lines):
    return [line for line in lines if line["kind"] == "compiled"]


@pytest.fixture(scope="module")
def probabilities(table):
    return [line for line in table if not {"logits", "filtered"} & set(line["configuration"].split())]


def layout(rows, name):
    """Return the rows of the table with that memory layout, of kernels that stream, of which there must be some."""
    found = [row for row in rows if name in row["configuration"].split() and row["kernel"] != "compare"]
    assert found
    return found


def test_every_pair_of_types_is_audited(probabilities):
    types = ("fp16", "bf16", "fp32", "fp64")
    pairs = {(p, q) for p in types for q in (*types, "one-hot")}
    alone = {(p, "one-hot") for p in types}
    expected = {("token", "verify"): pairs, ("block", "prefixes"): pairs, ("block", "verify"): pairs,
                ("coupled", "verify"): alone}  # fmt: skip
    audited = {launch: set() for launch in expected}
    for row in layout(probabilities, "aligned"):
        audited[row["rule"], row["kernel"]].add(tuple(row["configuration"].split()[:2]))
    assert audited == expected
    assert {row["rule"] for row in probabilities if row["kernel"] == "compare"} == {"coupled"}


def test_nothing_is_spilled_or_in_local_memory(table):
    assert [row for row in table if row["spills"] != "0" or row["local bytes"] != "0"] == []


def test_no_multiply_add_is_fused_and_nothing_is_approximated(table):
    """But within a float64 division, which the PTX asks to round correctly: each accounts for its own instructions."""
    assert [row for row in table if row["fused"] != "0" or row["approximate"] != "0"] == []


def test_block_alone_divides(probabilities):
    """Once by q(x), which a one-hot draft spares, and once for a prefix's chance; kernel A divides by q(x) alone."""
    divisions = {
        (row["rule"], row["kernel"], "one-hot" in row["configuration"], row["divisions"]) for row in probabilities
    }
    assert divisions == {
        ("token", "verify", False, "0"), ("token", "verify", True, "0"),
        ("block", "prefixes", False, "2"), ("block", "prefixes", True, "1"),
        ("block", "verify", False, "1"), ("block", "verify", True, "0"),
        ("coupled", "verify", True, "0"), ("coupled", "compare", True, "0"),
    }  # fmt: skip


def test_aligned_rows_are_streamed_by_16_byte_loads_alone(table):
    """But for the largest logit of a tile, which may tell to pass the tile over."""
    rows = layout(table, "aligned")
    assert [row for row in rows if row["wide loads"] == "0"] == []
    assert {row["kernel"].split()[0] for row in rows if row["other loads"] != "0"} <= {"thresholds"}
    assert {row["other loads"] for row in rows} <= {"0", "1"}


@pytest.mark.parametrize(("name", "wide"), [("unaligned", "0"), ("strided", "0"), ("half", "1")])
def test_a_wide_load_needs_alignment(table, name, wide):
    assert {row["wide loads"] for row in layout(table, name)} == {wide}


def test_every_kernel_from_logits_is_audited(table):
    kernels = {row["kernel"] for row in table if {"logits", "filtered"} & set(row["configuration"].split())}
    searches = {f"thresholds {name}{start}" for name in ("top-k", "top-p") for start in ("", " start")}
    assert kernels == {"masses", "masses filtered", "verify", "prefixes", "compare"} | searches


def test_the_pass_over_logits_reaches_its_share_of_bandwidth(table):
    passes = [row for row in layout(table, "logits") if row["kernel"] == "masses"]
    rows = [row for row in passes if row["configuration"].startswith("bf16 bf16 aligned")]
    assert rows
    assert [row for row in rows if float(row["instructions per id"]) > MOST_INSTRUCTIONS_PER_LOGIT] == []


def test_bytes_are_counted_on_inputs_that_need_all_rows(lines):
    """Kernel B reads every row once, and the bonus row again: 10/9, and a little for tile sums and forms."""
    counted = {(row["configuration"], row["input"], row["load"]): float(row["bytes per least"])
               for row in lines if row["kind"] == "counted"}  # fmt: skip
    for load in ("one request", "many requests"):
        assert 10 / 9 < counted["token bf16 logits", "all accepted", load] <= 1.15
        assert 1 < counted["token fp32 probabilities", "all accepted", load] <= 1.10
        assert 1 < counted["token fp32 probabilities", "all rejected", load] <= 1.10


def test_the_audit_fails_at_each_bar():
    faults = [
        ({"spills": 2}, "spills registers"),
        ({"local bytes": 8}, "spills registers"),
        ({"fused": 1}, "fuses or approximates"),
        ({"approximate": 1}, "fuses or approximates"),
        ({"other loads": 1}, "loads less than 16 bytes"),
        ({"limit": "issue"}, "is bound by instructions"),
        ({"kernel": "masses", "configuration": "bf16 bf16 aligned seed logits", "share of bandwidth": 0.69},
         "stays below 0.7 of bandwidth"),
        ({"kind": "counted", "configuration": "token fp32 probabilities", "input": "all rejected",
          "bytes per least": "1.11"}, "touches more than 1.1 of the least bytes"),
        ({"kind": "counted", "configuration": "token bf16 logits", "input": "all accepted",
          "bytes per least": "1.16"}, "touches more than 1.15 of the least bytes"),
    ]  # fmt: skip
    code = f"""
from specnb_kernels.audit import failures
sound = {{"kind": "compiled", "rule": "token", "kernel": "verify", "configuration": "fp32 fp32 aligned seed",
         "arch": "sm_90", "spills": 0, "local bytes": 0, "fused": 0, "approximate": 0, "wide loads": 2,
         "other loads": 0, "limit": "memory", "share of bandwidth": 1.0}}
print([failures(sound | fault) for fault in [{{}}, *{[fault for fault, _ in faults]!r}]])
"""
    assert python("-c", code).strip() == str([[], *([bar] for _, bar in faults)])


def test_streaming_stays_below_the_issue_limit(probabilities):
    rows = layout(probabilities, "aligned")
    busy = [row for row in rows if float(row["instructions per id"]) > MOST_INSTRUCTIONS_PER_ID]
    assert [row for row in busy if "fp64" not in row["configuration"]] == []  # 8 bytes an id take longer to load


def test_splits_hand_over_in_order(table):
    assert {row["hand-over"] for row in table if row["kernel"] != "compare"} == {HAND_OVER}


def test_the_readme_tells_these_numbers(table):
    if importlib.metadata.version("triton").split(".")[:2] != ["3", "9"]:
        pytest.skip("the README tells the numbers of Triton 3.9")
    readme = (ROOT / "kernels" / "README.md").read_text(encoding="utf-8")
    numbers = r"\| (\d+) \| (\d+) \| ([\d.]+) \|$"
    found = re.findall(r"^\| (\w+) ([\w -]+) \| (b?float\d+, .*) " + numbers, readme, re.MULTILINE)
    assert len(found) == 20
    rows = {(row["rule"], row["kernel"], row["configuration"]): row for row in table}
    for rule, kernel, name, *told in found:
        p, q, *more = name.replace("bfloat", "bf").replace("float", "fp").split(", ")
        source = " ".join([""] + [x for x in more if x != "unaligned"])
        row = rows[rule, kernel, f"{p} {q} {'unaligned' if 'unaligned' in more else 'aligned'} seed{source}"]
        assert [row[column] for column in ("registers", "wide loads", "instructions per id")] == told


def test_sizes_are_no_reason_to_compile_again():
    code = """
from specnb_kernels.compiling import Configuration, compiled
sizes = ((0, 128), (1, 1024), (4, 50304), (7, 128256))
for rule in ("token", "block", "coupled"):
    same = [compiled(Configuration(rule=rule, gamma=gamma, width=width)) for gamma, width in sizes]
    other = compiled(Configuration(rule=rule, gamma=20))
    for name, kernel in other.items():
        hashes = {kernels[name].hash for kernels in same}
        print(rule, name, len(hashes), len(hashes | {kernel.hash}))
"""
    assert python("-c", code).splitlines() == [
        "token verify 1 2",
        "block prefixes 1 2",
        "block verify 1 2",
        "coupled verify 1 1",  # a draw knows no other position than its own
        "coupled compare 1 2",
    ]


def test_the_audit_sees_what_it_must_refuse():
    """Lines of SASS as cuobjdump prints them, with everything in them that the other tests rule out."""
    from specnb_kernels import sass

    code = sass.instructions(
        """
        /*0a10*/              @!P0 LDG.E.64 R8, desc[UR8][R4.64] ;  /* 0x0000000804088981 */
        /*0a20*/                   DFMA R2, R2, R4, R6 ;
        /*0a30*/                   STL [R1], R2 ;
        /*0a40*/               @P1 BRA 0xa10 ;
        /*0a50*/                   LDG.E.U16 R8, desc[UR8][R4.64] ;
        """
    )
    assert [i.opcode for i in code] == ["LDG.E.64", "DFMA", "STL", "BRA", "LDG.E.U16"]
    assert [sass.load_bytes(i) for i in code] == [8, 0, 0, 0, 2]
    assert sass.streaming_loop(code) == code[:4]


def test_a_branch_back_over_the_ticket_closes_no_loop():
    from specnb_kernels import sass

    code = sass.instructions(
        """
        /*0a10*/                   LDG.E.U16 R8, desc[UR8][R4.64] ;
        /*0a20*/               @P1 BRA 0xa10 ;
        /*0a30*/                   ATOMG.E.ADD.STRONG.GPU PT, R2, desc[UR8][R4.64], R5 ;
        /*0a40*/                   LDG.E.128 R8, desc[UR8][R4.64] ;
        /*0a50*/                   BRA 0xa30 ;
        """
    )
    assert sass.streaming_loop(code) == code[:2]
