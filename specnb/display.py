"""Tokens that show what became of them, in notebooks and on terminals.

Colour is never the only sign: rejected tokens are struck through, corrections bold and underlined, a bonus
has a double frame. JupyterLab drops <style>, SVG and its own colour variables from outputs it doesn't trust,
so all HTML here is tables and spans with literal styles; a coloured background brings its own text colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from specnb.arrays import to_numpy
from specnb.errors import SpecnbError
from specnb.validation import effective_lengths

if TYPE_CHECKING:
    from specnb.rules import Rule
    from specnb.verdict import Verdict

_BOX = "padding: 1px 4px; margin: 1px; border-radius: 3px; "
STYLES = {
    "prompt": "font-style: italic",
    "accepted": _BOX + "color: #08306b; background-color: #dbe9f6; border: 1px solid #5b8fc0",
    "rejected": _BOX + "color: #7f2704; background-color: #fdebe0; border: 1px dashed #b5561c; "
    "text-decoration: line-through",
    "correction": _BOX + "color: #3d2c00; background-color: #ffd966; border: 1px solid #8a6d00; "
    "text-decoration: underline; font-weight: bold",
    "bonus": _BOX + "color: #00372a; background-color: #b5e3d0; border: 3px double #00755a; font-weight: bold",
    "plain": "",
}
"""The kinds of token and how a notebook draws them."""

TERMINAL = {
    "prompt": ("\033[2m", "", ""),
    "accepted": ("\033[34m", "", ""),
    "rejected": ("\033[31;9m", "[-", "-]"),
    "correction": ("\033[1;4;33m", "{+", "+}"),
    "bonus": ("\033[1;7;32m", "<", ">"),
    "plain": ("", "", ""),
}
"""How a terminal draws them: the code that turns the colour on, and the marks where there is no colour."""

EXAMPLE = {
    "p": [Fraction(1, 2), Fraction(3, 10), Fraction(1, 5)],
    "q": [Fraction(1, 5), Fraction(3, 10), Fraction(1, 2)],
}
"""The rows of README's example, by which a rule shows itself."""

MAX_ROWS = 16
"""Requests of a batch that a verdict shows; the rest is counted."""


@dataclass(frozen=True, repr=False)
class Strip:
    """A text cut into tokens, each with its kind; made by `strip`."""

    tokens: tuple[str, ...]
    kinds: tuple[str, ...]

    def __repr__(self) -> str:
        """Return the text with marks instead of colours."""
        return self.terminal(color=False)

    def terminal(self, *, color: bool = True) -> str:
        """Return the text for a terminal, in colour or between marks."""
        return "".join(_on_terminal(token, kind, color) for token, kind in zip(self.tokens, self.kinds, strict=True))

    def chips(self) -> str:
        """Return the tokens as HTML spans."""
        return "".join(_chip(_visible(token, kind), kind) for token, kind in zip(self.tokens, self.kinds, strict=True))

    def _repr_html_(self) -> str:
        present = dict.fromkeys(self.kinds)
        legend = " ".join(_chip(kind, kind) for kind in STYLES if kind in present and kind != "plain")
        text = '<td style="text-align: left; line-height: 2; white-space: pre-wrap; font-family: monospace">'
        foot = '<td style="text-align: left; font-size: 85%">'
        return f"<table><tr>{text}{self.chips()}</td></tr><tr>{foot}{legend}</td></tr></table>"


def strip(tokens: Iterable[Any], kinds: Iterable[str]) -> Strip:
    """Return tokens (texts or ids) with their kinds as an object that notebooks and terminals can show.

    kinds: for each token one of prompt, accepted, rejected, correction, bonus, plain.

    >>> strip(["the", " cat", " dog", " sat"], ["prompt", "rejected", "correction", "bonus"])
    the[- cat-]{+ dog+}< sat>
    """
    strip = Strip(tuple(str(token) for token in tokens), tuple(kinds))
    if odd := [kind for kind in strip.kinds if not isinstance(kind, str)]:
        raise SpecnbError(f"kind {odd[0]!r} is no text; expected {', '.join(STYLES)}")
    if len(strip.tokens) != len(strip.kinds):
        raise SpecnbError(f"{len(strip.tokens)} tokens and {len(strip.kinds)} kinds; expected one kind per token")
    if unknown := set(strip.kinds) - set(STYLES):
        raise SpecnbError(f"kinds {sorted(unknown)} are unknown; expected {', '.join(STYLES)}")
    return strip


def legend(*, color: bool = True) -> str:
    """Return the kinds that a verification step makes, drawn for a terminal.

    >>> legend(color=False)
    'accepted  [-rejected-]  {+correction+}  <bonus>'
    """
    return "  ".join(_on_terminal(kind, kind, color) for kind in ("accepted", "rejected", "correction", "bonus"))


def verdict_html(verdict: Verdict, labels: Sequence[str] | Callable[[int], str] | None = None) -> str:
    """Return a verdict as an HTML table: one row per request, one column per draft, then the final token.

    labels: a text per id, or a function from the id; None shows ids.
    """
    draft, _, _, lengths, _ = verdict.inputs
    draft = to_numpy(draft)
    tokens = np.atleast_2d(to_numpy(verdict.tokens))
    accepted, status = (np.atleast_1d(to_numpy(a)) for a in (verdict.num_accepted, verdict.status))
    length = effective_lengths(draft, None if lengths is None else to_numpy(lengths))
    B, G = draft.shape
    flagged = bool(status.any())
    looks_ahead = verdict.decided_by.sampler in ("verify_block", "verify_by_law")
    heads = ["request", *(f"draft {i + 1}" for i in range(G)), "then", *["status"] * flagged]
    body = []
    for b in range(min(B, MAX_ROWS)):
        n, L = int(accepted[b]), int(length[b])
        cells = [*_drafted(draft[b], n, L, labels, looks_ahead), _final(int(tokens[b, n]), n < L, labels)]
        body.append([str(b), *cells, *[_status(int(status[b]))] * flagged])
    more = f" · {B - MAX_ROWS} more requests" if B > MAX_ROWS else ""
    lossy = "" if verdict.lossless else " (lossy)"
    caption = f"rule {verdict.rule}{lossy} · backend {verdict.backend} · contract {verdict.contract}{more}"
    return _table(heads, body, caption)


def rule_markdown(rule: Rule) -> str:
    """Return a rule as Markdown: its formula, and what it does to a small pair of rows in one step of two drafts."""
    from specnb import laws

    p, q = (EXAMPLE[name] if rule.exact else [float(x) for x in EXAMPLE[name]] for name in "pq")
    accepted = laws.accepted_law(rule, p=p, q=q, gamma=2)
    off = laws.total_variation(laws.joint_law(rule, p=p, q=q, gamma=2), laws.target_law(p, 3))
    claim = "lossless" if rule.lossless else "lossy"
    shown = ["(" + ", ".join(map(str, EXAMPLE[name])) + ")" for name in "pq"]
    heads = [*(f"P(n = {n})" for n in range(3)), "E[n]", "TV of the output from p"]
    cells = [*accepted, (accepted * np.arange(3)).sum(), off]
    table = [heads, ["---"] * len(heads), [_short(value) for value in cells]]
    return "\n\n".join([
        f"**{rule.label}** ({claim}): {rule.reference}", *([f"$${rule.formula}$$"] if rule.formula else []),
        f"With p = {shown[0]}, q = {shown[1]} at every position and γ = 2:",
        "\n".join("| " + " | ".join(row) + " |" for row in table),
    ])  # fmt: skip


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _drafted(draft: np.ndarray, accepted: int, length: int, labels: Any, looks_ahead: bool) -> list[str]:
    """Return the cells of a request's drafts: kept, rejected, never looked at (unless the rule does), or absent."""
    kinds = ["accepted"] * accepted + ["rejected"] + ["rejected" if looks_ahead else "plain"] * length
    names = {"accepted": "accepted", "rejected": "rejected", "plain": "not read"}
    cells = [
        _labelled(_named(x, labels), kind, names[kind]) for x, kind in zip(draft[:length].tolist(), kinds, strict=False)
    ]
    return cells + [""] * (len(draft) - length)


def _final(token: int, rejected: bool, labels: Any) -> str:
    """Return the cell of the last token of the step."""
    kind = "correction" if rejected else "bonus"
    return _labelled(_named(token, labels), kind, kind) if token >= 0 else "none"


def _named(token: int, labels: Any) -> str:
    """Return the text for an id; an id outside the vocabulary shows itself."""
    if labels is None or token < 0 or (not callable(labels) and token >= len(labels)):
        return str(token)
    return str(labels(token) if callable(labels) else labels[token])


def _status(bits: int) -> str:
    from specnb.verdict import Status

    return escape(", ".join(str(flag.name).lower() for flag in Status if flag & bits)) or "fine"


def _table(heads: list[str], rows: list[list[str]], caption: str) -> str:
    head = "".join(f'<th style="text-align: center">{escape(text)}</th>' for text in heads)
    cell = '<td style="text-align: center; vertical-align: top">'
    body = "".join("<tr>" + "".join(f"{cell}{text}</td>" for text in row) + "</tr>" for row in rows)
    foot = f'<tr><td colspan="{len(heads)}" style="text-align: left; font-size: 85%">{escape(caption)}</td></tr>'
    return f"<table><tr>{head}</tr>{body}{foot}</table>"


def _labelled(text: str, kind: str, label: str) -> str:
    return f'{_chip(_visible(text, kind), kind)}<br><span style="font-size: 75%">{escape(label)}</span>'


def _chip(text: str, kind: str) -> str:
    return f'<span style="{STYLES[kind]}">{escape(text)}</span>'.replace("\n", "<br>")


def _visible(text: str, kind: str) -> str:
    """Return a token that can be seen: a rejected line break breaks no line, blanks alone get a sign."""
    text = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    if kind not in ("prompt", "plain"):
        text = text.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}" + "\n" * (kind != "rejected"))
    return text if text.strip(" ") else text.replace(" ", "\N{OPEN BOX}")


def _on_terminal(text: str, kind: str, color: bool) -> str:
    """Return one token in colour or between marks; no colour crosses the end of a line."""
    on, before, after = TERMINAL[kind]
    lines = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text).split("\n")
    if kind == "rejected":  # it isn't in the output, so it breaks no line
        lines = ["\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}".join(lines)]
    if not color:
        return before + "\n".join(lines) + after
    return "\n".join(f"{on}{line}\033[0m" if on and line else line for line in lines)
