"""What the Triton kernels do to a single score: the activation h, its derivative, the logarithm of the entropy, dropout."""

from __future__ import annotations

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice
except ImportError as error:
    raise ImportError("The CUDA kernels of fused attention need Triton: pip install triton (Linux only).") from error

INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)  # on the CPU, by TRITON_INTERPRET=1
TINY: tl.constexpr = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32: keeps log u finite at u = 0
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def maximum(x, floor):
    """The larger of the two; NaN stays NaN, which `tl.maximum` alone would replace by `floor`."""
    return tl.maximum(x, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def log2_of(u):
    """log2 u, finite at 0: one instruction of the unit that softmax needs for exp, where `tl.log2` is a polynomial."""
    u = maximum(u, TINY)
    return tl.log2(u) if INTERPRETED else libdevice.fast_log2f(u)


@triton.jit
def narrow(x, u, dtype: tl.constexpr, ACTIVATION: tl.constexpr):
    """u = h(x) in the dtype of the next product. For relu the conversion of x to 16 bits does both by itself; NaN stays NaN."""
    if ACTIVATION != "relu" or INTERPRETED or dtype == tl.float32:
        narrowed = u.to(dtype)
    elif dtype == tl.bfloat16:
        narrowed = tl.inline_asm_elementwise(
            "cvt.rn.relu.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        narrowed = tl.inline_asm_elementwise(
            "cvt.rn.relu.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=tl.float16, is_pure=True, pack=2
        )
    return narrowed


@triton.jit
def softplus(x):
    """log(1 + exp x) to full relative precision: log1p(e) = log(w) · e / (w - 1) with w = 1 + e rounded."""
    e = tl.exp(-tl.abs(x))
    w = 1.0 + e
    rounded = tl.where(w == 1.0, 1.0, w - 1.0)
    return maximum(x, 0.0) + tl.where(w == 1.0, e, tl.log(w) * (e / rounded))


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """h(x)."""
    u = x
    if ACTIVATION == "relu":
        u = maximum(x, 0.0)
    elif ACTIVATION == "relu2":
        u = maximum(x, 0.0)
        u = u * u
    elif ACTIVATION == "relu6":
        u = maximum(x, 0.0)
        u = tl.where(u > 6.0, 6.0, u)
    elif ACTIVATION == "sigmoid":
        u = 1.0 / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        u = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "softplus":
        u = softplus(x)
    else:
        tl.static_assert(ACTIVATION == "identity")
    return u


@triton.jit
def activation_gradient(x, u, gradient, ACTIVATION: tl.constexpr):
    """h'(x) · gradient, given u = h(x). A closed gate is 0 whatever the gradient, a NaN score keeps it open."""
    if ACTIVATION == "relu":
        gradient = tl.where(x <= 0.0, 0.0, gradient)
    elif ACTIVATION == "relu2":
        gradient = tl.where(x <= 0.0, 0.0, 2.0 * x * gradient)
    elif ACTIVATION == "relu6":
        gradient = tl.where((x <= 0.0) | (x >= 6.0), 0.0, gradient)
    elif ACTIVATION == "sigmoid":
        gradient = u * (1.0 - u) * gradient
    elif ACTIVATION == "gelu":
        density = 0.3989422804014327 * tl.exp(-0.5 * x * x)
        gradient = (0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density) * gradient
    elif ACTIVATION == "softplus":
        gradient = gradient / (1.0 + tl.exp(-x))
    else:
        tl.static_assert(ACTIVATION == "identity")
    return gradient


@triton.jit
def mixed(x):
    """A hash of 32 bits, all as good as random."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def joined(key, part):
    """A key, uint32, and the low 32 bits of one part more."""
    return mixed(key + part.to(tl.uint32) * 0x9E3779B1 + 0x85EBCA77)


@triton.jit
def dropout_key(seed, batch, head, row):
    """What the draws of a row start from, uint32, shape of `row`: a hash of seed, batch, head and row, one after the other."""
    key = joined(seed.to(tl.uint32), seed >> 32)
    return joined(joined(joined(key, batch), head), row)


@triton.jit
def kept(row_key, first_column, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Whether dropout keeps each weight of a tile, boolean: (rows, columns) for a row_key (ROWS, 1), or, for (1, ROWS), the other
    way round. threshold: p · 2**16.

    The draw depends on the place of the weight alone, not on tile sizes or on the kernel that asks. A hash of row and column
    serves two columns, 8 apart: in the tiles of all kernels one thread holds both. Philox, which torch uses, costs fourteen
    times as much, more than the rest of a tile.
    """
    pair = (first_column // 2 + tl.arange(0, COLUMNS // 2)).to(tl.uint32) * 0x9E3779B1
    if row_key.shape[1] == 1:
        bits = mixed(tl.reshape(row_key + pair[None, :], (ROWS, COLUMNS // 16, 8)))
        keep = tl.join((bits & 0xFFFF).to(tl.int32) >= threshold, (bits >> 16).to(tl.int32) >= threshold)
        keep = tl.reshape(tl.permute(keep, (0, 1, 3, 2)), (ROWS, COLUMNS))
    else:
        bits = mixed(tl.reshape(row_key + pair[:, None], (COLUMNS // 16, 8, ROWS)))
        keep = tl.join((bits & 0xFFFF).to(tl.int32) >= threshold, (bits >> 16).to(tl.int32) >= threshold)
        keep = tl.reshape(tl.permute(keep, (0, 3, 1, 2)), (COLUMNS, ROWS))
    return keep
