"""An audit as something to read, on terminals and in notebooks: the same cells, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from html import escape
from math import lcm

from specnb.laws.auditing.findings import OBSTACLES, Audit, Finding
from specnb.laws.certificates import COLOURS
from specnb.laws.rows import Rows

PROBE_WORDS = {True: "pass", False: "FAIL", None: "not tried"}
STYLES = COLOURS | {"pass": COLOURS["LOSSLESS"], "FAIL": COLOURS["NOT LOSSLESS"]}
STYLES |= {"equal": STYLES["pass"], "different": STYLES["FAIL"]}
STYLES |= dict.fromkeys(OBSTACLES, COLOURS["INCONCLUSIVE"])
FINEST = 2**20
"""The largest denominator that is shown; finer fractions, and what was found to the resolution, as decimals."""


def audit_text(audit: Audit) -> str:
    """Return an audit as text: the verdict, the worst example, the trials, the probes, the errors."""
    lines = [f"{audit.verdict}: {audit.sampler}; {_boundaries(audit)}", *_sentences(audit)]
    return "\n".join([*lines, "", _text_table(*_trials(audit)), "", _text_table(*_probes(audit))])


def audit_html(audit: Audit) -> str:
    """Return an audit as HTML with literal styles, which untrusted notebooks show too."""
    verdict = f'<span style="padding: 1px 4px; {COLOURS[audit.verdict]}">{audit.verdict}</span> '
    verdict += escape(f"{audit.sampler}; {_boundaries(audit)}")
    sentences = "".join(f"<br>{escape(sentence)}" for sentence in _sentences(audit))
    return f"<p>{verdict}{sentences}</p>{_html_table(*_trials(audit))}{_html_table(*_probes(audit))}"


def _boundaries(audit: Audit) -> str:
    failed, tried = len(audit.failed_probes), sum(each.passed is not None for each in audit.probes)
    return f"boundary probes failed: {failed} of {tried}"


def _sentences(audit: Audit) -> list[str]:
    """Return what stands above the tables."""
    said = [audit.method]
    if audit.worst is not None:
        said.append(f"worst: {_worst(audit.worst)}")
    elif audit.obstacle:
        said.append(audit.obstacle)
    return said + [
        f"{fault.what}; for draft {fault.draft}, q {fault.q}, p {fault.p}, uniforms {fault.uniforms}"
        for fault in audit.faults
    ]


def _worst(finding: Finding) -> str:
    trial = finding.trial
    return (
        f"{trial.name}, total variation {_number(finding.total_variation, finding)}, of the first token "
        f"{_number(finding.first_token, finding)}; gamma = {trial.gamma}, q = {_row(trial.q)}, p = {_row(trial.p)}"
    )


def _row(rows: Rows) -> str:
    """Return a row as counts over their common denominator; of rows by prefix the first one."""
    row = rows(()) if callable(rows) else rows
    D = lcm(*(value.denominator for value in row))
    shown = f"({', '.join(str(int(value * D)) for value in row)})/{D}"
    return f"{shown} at first" if callable(rows) else shown


def _trials(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of the table of trials."""
    tested = any(finding.test is not None for finding in audit.findings)
    heads = ["trial", "V", "gamma", "steps", "total variation", "first token", "accepted", "block's", "law"]
    return heads + ["p-value", "detectable"] * tested, [_trial(finding) for finding in audit.findings]


def _trial(finding: Finding) -> list[str]:
    trial, test = finding.trial, finding.test
    numbers = [finding.total_variation, finding.first_token, finding.measured.accepted]
    cells = [trial.name, str(len(finding.target)), str(trial.gamma), str(trial.steps)]
    cells += [*(_number(value, finding) for value in numbers), str(finding.best), finding.state]
    if test is None:
        return cells
    return [*cells, f"{test.p_value:.2g}", "any" if test.detectable is None else f"{test.detectable:.3f}"]


def _number(value: Fraction, finding: Finding) -> str:
    """Return an exact value as a fraction, a counted one as a decimal."""
    exact = finding.test is None and value.denominator <= FINEST
    return str(value) if exact else f"≈ {float(value):.3g}"


def _probes(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Return the heads and rows of the table of boundary probes."""
    rows = [[each.name, each.expected, each.got, PROBE_WORDS[each.passed]] for each in audit.probes]
    return ["boundary probe", "expected", "came", ""], rows


def _text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)]
    return "\n".join(line.rstrip() for line in lines)


def _html_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th style="text-align: left">{escape(cell)}</th>' for cell in heads)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str) -> str:
    return f'<td style="text-align: left; {STYLES.get(text, "")}">{escape(text)}</td>'
