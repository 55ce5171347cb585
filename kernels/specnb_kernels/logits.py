"""Probabilities formed in registers from logits: the contract's exp2, and what a row's form is."""

import triton
import triton.language as tl

from specnb_kernels.arithmetic import at_least_single

LOG2_E = tl.constexpr(1.4426950408889634)
FIXED = tl.constexpr(2.0**44)  # the integer mass of a row's largest logit
ROUNDING = tl.constexpr(1.5 * 2.0**23)  # added to a float32 below 2^22, it leaves the nearest integer in the low bits
LOWEST = tl.constexpr(-100.0)  # 2^t is 0 below

C1 = tl.constexpr(0.6931471824645996)
C2 = tl.constexpr(0.24022650718688965)
C3 = tl.constexpr(0.05550327152013779)
C4 = tl.constexpr(0.009618056938052177)
C5 = tl.constexpr(0.0013400427997112274)
C6 = tl.constexpr(0.00015461444854736328)

# What FILTERED says: nothing is left out, or what lies below a threshold, or also what is too improbable.
TOPS = tl.constexpr(1)
MIN_P = tl.constexpr(2)

# A row's form, float32: what turns its logits into probabilities.
FORM = tl.constexpr(6)
TOP = tl.constexpr(0)  # its largest logit
SCALE = tl.constexpr(1)  # log2(e) / temperature
FACTOR = tl.constexpr(2)  # 1 / the mass of 2^((z - top)·scale); NaN in a row that is no distribution
FIRST = tl.constexpr(3)  # at temperature 0 the id that has all the mass, else -1
THRESHOLD = tl.constexpr(4)  # the smallest logit that top-k and top-p keep
LEAST = tl.constexpr(5)  # the smallest 2^((z - top)·scale) that min-p keeps


@triton.jit
def exp2(t, UNIT: tl.constexpr):
    """Return 2^t · UNIT, a power of two, in float32 for -100 <= t <= 0; no number below that.

    To the bit a polynomial times 2^k. UNIT in its coefficients and k in its exponent's bits change no rounding, and
    save two multiplications.
    """
    k = t + ROUNDING
    f = t - (k - ROUNDING)
    value = f * (C6 * UNIT) + C5 * UNIT
    value = value * f + C4 * UNIT
    value = value * f + C3 * UNIT
    value = value * f + C2 * UNIT
    value = value * f + C1 * UNIT
    value = value * f + UNIT
    return (value.to(tl.int32, bitcast=True) + (k.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


@triton.jit
def relative(z, top, scale):
    """Return 2^((z - top)·scale) for z <= top, by the contract."""
    t = (z - top) * scale
    return tl.where(t < LOWEST, 0.0, exp2(t, 1.0))


@triton.jit
def load_form(forms, mask, FILTERED: tl.constexpr):
    """Return the forms of rows, as a tuple."""
    top = tl.load(forms + TOP, mask=mask)
    scale = tl.load(forms + SCALE, mask=mask)
    factor = tl.load(forms + FACTOR, mask=mask)
    first = tl.load(forms + FIRST, mask=mask).to(tl.int32)
    threshold, least = top, top  # not used without filters
    if FILTERED >= TOPS:
        threshold = tl.load(forms + THRESHOLD, mask=mask)
    if FILTERED >= MIN_P:
        least = tl.load(forms + LEAST, mask=mask)
    return top, scale, factor, first, threshold, least


@triton.jit
def read(rows, ids, stride, mask, form, FILTERED: tl.constexpr):
    """Return a row's probabilities at ids, at least float32 wide, and 0 where masked; mask may be None.

    form is None where the row holds probabilities; else it holds logits, and p(v) is formed here.
    """
    if mask is None:
        x = at_least_single(tl.load(rows + ids.to(tl.int64) * stride))
    else:
        x = at_least_single(tl.load(rows + ids.to(tl.int64) * stride, mask=mask, other=0.0))
    if form is None:
        return x
    else:
        top, scale, factor, first, threshold, least = form
        z = x.to(tl.float32)
        e = relative(z, top, scale)
        if FILTERED >= TOPS:
            e = tl.where(z >= threshold, e, 0.0)
        if FILTERED >= MIN_P:
            e = tl.where(e >= least, e, 0.0)
        formed = tl.where(first >= 0, (ids == first).to(tl.float32), e * factor)
        if mask is None:
            return formed
        else:
            return tl.where(mask, formed, 0.0)


@triton.jit(do_not_specialize=["row", "V"], do_not_specialize_on_alignment=["id"])
def probabilities_kernel(logits, forms, out, row: tl.int64, id, V: tl.int32,
                         BLOCK: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Write the probabilities of BLOCK ids of row program_id(0); out float32 [B, V], forms [B, FORM]."""
    request = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    form = load_form(forms + request * FORM, None, FILTERED)
    tl.store(out + request * V + ids, read(logits + request * row, ids, id, ids < V, form, FILTERED), mask=ids < V)
