"""Token strips and verdicts as people see them, in notebooks and on terminals."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import specnb
from specnb import display, rules
from specnb.errors import SpecnbError

KINDS = tuple(display.STYLES)
Q = np.array([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
P = np.array([[0.5, 0.3, 0.2]] * 3)


class _Balanced(HTMLParser):
    """Collects the text and fails on a tag that isn't closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.styles = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)
        self.styles += [value for name, value in attrs if name == "style"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def _read(html):
    parser = _Balanced()
    parser.feed(html)
    assert not parser.open
    return parser


def test_a_strip_shows_every_token_and_explains_its_kinds():
    strip = display.strip(KINDS, KINDS)
    text = _read(strip._repr_html_()).text
    for kind in KINDS:
        assert text.count(kind) == (1 if kind == "plain" else 2)  # the token, and its entry in the legend
    assert repr(strip) == "promptaccepted[-rejected-]{+correction+}<bonus>plain"


def test_kinds_differ_without_colour():
    def colourless(style):
        return re.sub(r"#[0-9a-f]{6}|(background-)?color: *", "", style)

    assert len({colourless(style) for style in display.STYLES.values()}) == len(KINDS)
    judged = ("accepted", "rejected", "correction", "bonus")
    assert len({display.strip(["x"], [kind]).terminal(color=False) for kind in judged}) == len(judged)


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("kind", ["accepted", "rejected", "correction", "bonus"])
def test_chips_bring_their_own_contrast(kind):
    """WCAG AAA: 7 to 1, whatever the page behind is."""
    text, background = re.findall(r"(?<=olor: )#[0-9a-f]{6}", display.STYLES[kind])
    light, dark = sorted((_luminance(text), _luminance(background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 7


def test_html_survives_sanitizing_and_is_the_same_each_time():
    html = display.strip(["<b>", "&", "\n", " "], ["accepted", "correction", "rejected", "bonus"])._repr_html_()
    assert not re.search(r"<style|<svg|var\(|class=|id=|0x", html)
    assert "&lt;b&gt;" in html
    assert html.count("<br>") == 0  # a rejected line break breaks no line
    assert "↵" in html
    assert "␣" in html


def test_line_breaks_and_control_characters():
    strip = display.strip(["a\n", "b\x1b[2J", "c\n"], ["accepted", "plain", "rejected"])
    assert repr(strip) == "a\nb�[2J[-c↵-]"
    assert strip.terminal() == "\033[34ma\033[0m\nb�[2J\033[31;9mc↵\033[0m"


@pytest.mark.parametrize(
    ("tokens", "kinds", "sentence"),
    [
        (["a"], ["acepted"], r"kinds \['acepted'\] are unknown; expected prompt, accepted"),
        (["a"], [[]], r"kind \[\] is no text; expected prompt, accepted"),
        (["a"], [None], "kind None is no text"),
        (["a", "b"], ["plain"], "2 tokens and 1 kinds; expected one kind per token"),
    ],
)
def test_wrong_strips_are_refused(tokens, kinds, sentence):
    with pytest.raises(SpecnbError, match=sentence):
        display.strip(tokens, kinds)


def _verdict(uniforms, **kwargs):
    return specnb.verify([2, 1], Q, P, uniforms=np.array(uniforms), **kwargs)


def test_verdict_that_accepts_everything_ends_in_a_bonus():
    text = _read(_verdict([0.39, 0.9, 0.6])._repr_html_()).text
    assert text[:4] == ["request", "draft 1", "draft 2", "then"]
    assert text[4:11] == ["0", "2", "accepted", "1", "accepted", "1", "bonus"]
    assert text[11:] == ["rule token · backend numpy · contract 1"]


def test_verdict_that_rejects_shows_what_was_not_read():
    text = _read(_verdict([0.41, 0.0, 0.0])._repr_html_()).text
    assert text[5:11] == ["2", "rejected", "1", "not read", "0", "correction"]


def test_labels_ragged_rows_status_and_long_batches():
    html = display.verdict_html(
        specnb.verify([[2, -1], [7, 0]], np.stack([Q, Q]), np.stack([P, P]), uniforms=np.zeros((2, 3))),
        labels=["a", "b", "c"],
    )
    text = _read(html).text
    assert text[4:] == [
        "status", "0", "c", "accepted", "a", "bonus", "fine",
        "1", "7", "rejected", "a", "not read", "a", "correction", "out_of_range",
        "rule token · backend numpy · contract 1",
    ]  # fmt: skip
    many = specnb.verify(np.zeros((20, 1), int), np.stack([Q[:1]] * 20), np.stack([P[:2]] * 20), seed=0)
    assert "4 more requests" in many._repr_html_()


def test_a_request_without_drafts_has_a_bonus():
    verdict = specnb.verify(np.zeros((1, 0), int), None, P[None, :1], seed=0)
    assert "bonus" in _read(verdict._repr_html_()).text


def test_the_block_rule_reads_every_draft():
    verdict = specnb.verify([0, 0, 0], np.array([[0.5, 0.5], [1, 0], [1, 0]]), np.array([[0, 1.0]] * 4), rule="block",
                            uniforms=[0.5] * 4)  # fmt: skip
    assert verdict.num_accepted == 0
    assert display.verdict_html(verdict).count("rejected") == 3


def test_a_rule_shows_its_law_and_its_claim():
    shown = rules.get("token")._repr_markdown_()
    assert "**token** (lossless)" in shown
    assert "| 3/10 | 21/100 | 49/100 | 119/100 | 0 |" in shown
    assert "(lossy)" in rules.lenient(0.5)._repr_markdown_()
    assert "(lossy)" in rules.typical()._repr_markdown_()


def test_a_lossy_verdict_carries_its_label():
    verdict = specnb.verify([0], [[0.5, 0.5]], [[0.5, 0.5]] * 2, seed=0, rule=rules.lenient(0.5))
    assert "rule lenient(l=0.5, residual=p - q) (lossy)" in display.verdict_html(verdict)


def test_a_rule_is_short_and_a_verdict_names_it():
    assert repr(rules.get("block")) == "Rule('block', lossless)"
    assert repr(rules.lenient(0.5)) == "Rule('lenient(l=0.5, residual=p - q)', lossy)"
    assert "decided_by=Rule('token', lossless)" in repr(_verdict([0.39, 0.9, 0.6]))
