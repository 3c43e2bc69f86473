"""The Triton kernels of point-wise attention: one forward, one for the gradient of the query, one for key and value.

With u_ij = h(c · q_i·k_j), the row scale r_i, the dropout mask D_ij (already divided by 1 - p) and the gradients dO, dS
and dT:

    O_i  = r_i sum_j D_ij u_ij v_j     S_i = r_i sum_j u_ij     T_i = r_i (sum_j u_ij log u_ij + log r_i sum_j u_ij)
    rho_i = dS_i + dT_i (1 + log r_i)
    dU_ij = r_i (D_ij dO_i·v_j + rho_i + dT_i log u_ij)         dX_ij = h'(x_ij) dU_ij
    dq_i = c sum_j dX_ij k_j           dk_j = c sum_i dX_ij q_i     dv_j = sum_i r_i D_ij u_ij dO_i

There is no running maximum and no normaliser, so r_i is applied once per row, after the sum. With FOLD_SCALE (relu and
identity, for which h(c x) = c h(x)) the scale c joins it: u below is then h(q·k), and r_i becomes kappa_i = c r_i. The
second kernel writes what the third needs of each query: r_i dO_i / (1 - p), r_i rho_i and r_i dT_i.

Tiles are written as rows × columns of what they hold, (queries × keys) in the first two kernels and (keys × queries) in
the third: every product is formed in the orientation it is used in, no result of a product is transposed. Each kernel
has one loop, which masks scores on the diagonal alone, by a branch, and loads only where the blocks of the loop are not
EVEN: with two loops that add to one tile, ptxas runs the products one by one.
Keys that are padding or out of range, and queries out of range, are read as zeros: their scores are 0, and only where
h(0) is not 0 must the weights be masked too. Lengths and positions are int32, offsets into memory int64.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)  # on the CPU, by TRITON_INTERPRET=1
TINY: tl.constexpr = tl.constexpr(1.1754943508222875e-38)  # the smallest normal float32: keeps log u finite at u = 0
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def maximum(x, floor):
    """The larger of the two; NaN stays NaN, which `tl.maximum` alone would replace by `floor`."""
    return tl.maximum(x, floor, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def log2_of(u):
    """log2 u, finite at 0: one instruction of the unit that softmax needs for exp, where `tl.log2` is a polynomial.

    TINY, which a sum with a normal number rounds away, is added: a maximum takes two cycles where a sum takes one.
    """
    u += TINY
    return tl.log2(u) if INTERPRETED else libdevice.fast_log2f(u)


@triton.jit
def narrow(x, u, dtype: tl.constexpr, ACTIVATION: tl.constexpr):
    """u = h(x) in the dtype of the next product. For relu the conversion of x to 16 bits does both by itself; NaN stays
    NaN."""
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
    """What the draws of a row start from, uint32, shape of `row`: a hash of seed, batch, head and row, one after the
    other."""
    key = joined(seed.to(tl.uint32), seed >> 32)
    return joined(joined(joined(key, batch), head), row)


@triton.jit
def kept(row_key, first_column, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Whether dropout keeps each weight of a tile, boolean: (rows, columns) for a row_key (ROWS, 1), or, for (1, ROWS),
    the other way round. threshold: p · 2**16.

    The draw depends on the position of the weight alone, not on tile sizes or on the kernel. A hash of row and
    column serves two columns, 8 apart: in the tiles of all kernels one thread holds both. Philox, which torch uses,
    costs fourteen times as much, more than the rest of a tile.
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


@triton.jit
def head_of(pointer, batch, head, strides):
    """The first row of one head; batch is int64."""
    return pointer + batch * strides[0] + head.to(tl.int64) * strides[1]


@triton.jit
def offsets_of(first, inside, stride, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Offsets (ROWS, DIM) of the rows first … first + ROWS of a matrix; False where not `inside` (ROWS,) or past
    HEAD_DIM."""
    dims = tl.arange(0, DIM)
    mask = inside[:, None]
    if HEAD_DIM != DIM:
        mask = mask & (dims < HEAD_DIM)[None, :]
    offsets = tl.arange(0, ROWS).to(tl.int64)[:, None] * stride + dims[None, :]
    return tl.cast(first, tl.int64) * stride + offsets, mask


@triton.jit
def load_rows(
    pointer, first, inside, stride, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, MASKED: tl.constexpr
):
    """Those rows, zero where masked; all of them are `inside` where not MASKED."""
    offsets, mask = offsets_of(first, inside, stride, ROWS, HEAD_DIM, DIM)
    masked: tl.constexpr = MASKED or HEAD_DIM != DIM
    return tl.load(pointer + offsets, mask=mask, other=0.0) if masked else tl.load(pointer + offsets)


@triton.jit
def store_rows(pointer, first, inside, stride, rows, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Writes those rows, in the precision of the destination."""
    offsets, mask = offsets_of(first, inside, stride, ROWS, HEAD_DIM, DIM)
    tl.store(pointer + offsets, rows.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def real_keys(key_padding_mask, batch, stride, first_key, columns, keys):
    """Whether each key of the tile exists and is not padding, (columns,)."""
    real = columns < keys
    if key_padding_mask is not None:
        real = tl.load(key_padding_mask + batch * stride + first_key + columns, mask=real, other=0) != 0
    return real


@triton.jit
def load_row_scale(row_scale, batch, head, strides, rows, inside):
    """r_i, (rows,); 0 out of range."""
    if row_scale is None:
        scale = tl.where(inside, 1.0, 0.0)
    else:
        row_scale = head_of(row_scale, batch, head, strides)
        scale = tl.load(row_scale + rows.to(tl.int64) * strides[2], mask=inside, other=0.0)
    return scale


@triton.jit
def load_gains(grad_sum, grad_sum_log, index, inside, r, scale, STATISTICS: tl.constexpr, FOLD_SCALE: tl.constexpr):
    """rho_i and dT_i ln 2, (rows,), for a logarithm to base 2 of a u that may lack its factor c; zeros if not asked
    for."""
    gain = tl.zeros_like(r)
    log_gain = gain
    if STATISTICS >= 1:
        gain = tl.load(grad_sum + index, mask=inside, other=0.0)
    if STATISTICS == 2:
        log_gain = tl.load(grad_sum_log + index, mask=inside, other=0.0)
        kappa = r * scale if FOLD_SCALE else r
        gain += log_gain * (1.0 + tl.log(maximum(kappa, TINY)))
        log_gain *= LN2
    return gain, log_gain


@triton.jit
def locate(tiles, tile_count, heads, own, other, BLOCK: tl.constexpr, LAST_FIRST: tl.constexpr):
    """Which tile this program computes: batch (int64), head, its first row, then start and length of both sequences.

    tiles: None, or (tile_count, 5) int32 for packed sequences: first row, own start, own length, other start, other
    length. Programs run the tiles of one head side by side, so that they share its keys in the cache. LAST_FIRST: from
    its end; the last queries see the most keys if causal, and what takes longest should begin first.
    """
    program = tl.program_id(0)
    tile = program % tile_count
    if LAST_FIRST:
        tile = tile_count - 1 - tile
    head = program // tile_count % heads
    batch = (program // tile_count // heads).to(tl.int64)
    start = tile * BLOCK
    own_start = tile * 0  # a zero with the type of `tile`: both branches of an `if` must give a variable one type
    other_start = tile * 0
    if tiles is not None:
        start = tl.load(tiles + tile * 5)
        own_start = tl.load(tiles + tile * 5 + 1)
        own = tl.load(tiles + tile * 5 + 2)
        other_start = tl.load(tiles + tile * 5 + 3)
        other = tl.load(tiles + tile * 5 + 4)
    return batch, head, start, own_start, own, other_start, other


@triton.jit
def visible_keys(
    start, queries, keys, offset, window, CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):
    """First key block that a query of the tile sees; the keys from which on, and the end of the whole key blocks up to
    which, every query sees all; and the end of the keys that any of them sees."""
    first = start * 0
    all_from = first
    whole = keys
    end = keys
    if CAUSAL:
        whole = tl.minimum(tl.maximum(start + offset + 1, 0), keys)
        end = tl.minimum(tl.maximum(tl.minimum(start + BLOCK_Q, queries) + offset, 0), keys)
    if window is not None:
        first = tl.maximum(start + offset + 1 - window, 0) // BLOCK_K * BLOCK_K
        all_from = start + BLOCK_Q + offset - window
    return first, all_from, whole // BLOCK_K * BLOCK_K, end


@triton.jit
def is_seen(column, last, window):
    """Whether a key is visible to a query whose last one is `last`: causal, within the window."""
    seen = column <= last
    if window is not None:
        seen = seen & (column > last - window)
    return seen


@triton.jit
def load_seed(seed, seed_at):
    """The seed of a graph that is captured is on the device: as a number it would be the same at every replay."""
    if seed_at is not None:
        seed = tl.load(seed_at)
    return seed


@triton.jit
def load_offset(query_offset):
    """query_offset from an int or from a pointer to one, of int32: beyond these bounds nothing changes any more."""
    offset = query_offset
    if query_offset.dtype.is_ptr():
        offset = tl.load(query_offset)
    return tl.minimum(tl.maximum(offset.to(tl.int64), -(2**30)), 2**30).to(tl.int32)


@triton.jit(do_not_specialize=["tile_count", "queries", "keys", "query_offset", "window", "seed", "threshold"])
def forward_kernel(
    query, key, value, row_scale, key_padding_mask, output, row_sum, row_sum_log, tiles, query_offset, window,
    query_strides, key_strides, value_strides, row_scale_strides, padding_stride, output_strides,
    tile_count, heads, group, queries, keys, scale, seed: tl.int64, seed_at, threshold, inverse,
    ACTIVATION: tl.constexpr, CLOSED_AT_ZERO: tl.constexpr, MASK_WEIGHTS: tl.constexpr, FOLD_SCALE: tl.constexpr,
    STATISTICS: tl.constexpr, CAUSAL: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """O, S and T of one block of queries. Strides are those of (batch, head, row); a row itself is contiguous."""
    all_queries = queries
    batch, head, start, first_query, queries, first_key, keys = locate(
        tiles, tile_count, heads, queries, keys, BLOCK_Q, True
    )
    if start >= queries:
        return
    rows = start + tl.arange(0, BLOCK_Q)
    inside = rows < queries
    offset = load_offset(query_offset)
    query = head_of(query, batch, head, query_strides)
    key = head_of(key, batch, head // group, key_strides)
    value = head_of(value, batch, head // group, value_strides)
    q = load_rows(query, first_query + start, inside, query_strides[2], BLOCK_Q, HEAD_DIM, DIM, True)
    if DROPOUT:
        row_key = dropout_key(load_seed(seed, seed_at), batch, head, first_query + rows)[:, None]

    o = tl.zeros([BLOCK_Q, DIM], dtype=tl.float32)
    # S by the tensor cores, in columns that are all the same, where the weights are there in 16 bits
    SUM_COLUMNS: tl.constexpr = 16 if value.dtype.element_ty.primitive_bitwidth == 16 and not DROPOUT else 1
    s = tl.zeros([BLOCK_Q, SUM_COLUMNS], dtype=tl.float32)
    t = tl.zeros([BLOCK_Q], dtype=tl.float32)
    ones = tl.full([BLOCK_K, SUM_COLUMNS], 1.0, dtype=value.dtype.element_ty)
    first, all_from, whole, end = visible_keys(start, queries, keys, offset, window, CAUSAL, BLOCK_Q, BLOCK_K)
    MASKED: tl.constexpr = key_padding_mask is not None or not EVEN
    for block in tl.range(first, end, BLOCK_K):
        columns = block + tl.arange(0, BLOCK_K)
        real = real_keys(key_padding_mask, batch, padding_stride, first_key, columns, keys)
        k = load_rows(key, first_key + block, real, key_strides[2], BLOCK_K, HEAD_DIM, DIM, MASKED)
        v = load_rows(value, first_key + block, real, value_strides[2], BLOCK_K, HEAD_DIM, DIM, MASKED)
        x = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if not FOLD_SCALE:
            x *= scale
        if CAUSAL and CLOSED_AT_ZERO:  # noqa: SIM102
            if block >= whole or (window is not None and block < all_from):
                x = tl.where(is_seen(columns[None, :], rows[:, None] + offset, window), x, 0.0)
        u = activate(x, ACTIVATION)
        if CAUSAL and not CLOSED_AT_ZERO:
            u = tl.where(is_seen(columns[None, :], rows[:, None] + offset, window), u, 0.0)
        if MASK_WEIGHTS and MASKED:
            u = tl.where(real[None, :], u, 0.0)
        if STATISTICS >= 1 and SUM_COLUMNS == 1:
            s += tl.sum(u, axis=1, keep_dims=True)
        if STATISTICS == 2:
            t += tl.sum(u * log2_of(u), axis=1)
        if DROPOUT:
            keep = kept(row_key, block, threshold, BLOCK_Q, BLOCK_K)
            x = tl.where(keep, x, 0.0)
            u = tl.where(keep, u, 0.0)
        weights = narrow(x, u, v.dtype, ACTIVATION)
        if STATISTICS >= 1 and SUM_COLUMNS > 1:
            s = tl.dot(weights, ones, acc=s)
        o = tl.dot(weights, v, acc=o, input_precision=PRECISION)

    kappa = load_row_scale(row_scale, batch, head, row_scale_strides, first_query + rows, inside)
    if FOLD_SCALE:
        kappa *= scale
    o *= (kappa * inverse)[:, None]
    output = head_of(output, batch, head, output_strides)
    store_rows(output, first_query + start, inside, output_strides[2], o, BLOCK_Q, HEAD_DIM, DIM)
    index = (batch * heads + head) * all_queries + first_query + rows
    if STATISTICS >= 1:
        sums = kappa * tl.sum(s, axis=1) / SUM_COLUMNS
        tl.store(row_sum + index, sums, mask=inside)
    if STATISTICS == 2:
        tl.store(row_sum_log + index, kappa * LN2 * t + tl.log(maximum(kappa, TINY)) * sums, mask=inside)


@triton.jit(do_not_specialize=["tile_count", "queries", "keys", "query_offset", "window", "seed", "threshold"])
def query_gradient_kernel(
    grad_output, grad_sum, grad_sum_log, query, key, value, row_scale, key_padding_mask, grad_query, scaled_gradient,
    scaled_gain, scaled_log_gain, tiles, query_offset, window, grad_output_strides, query_strides, key_strides,
    value_strides, row_scale_strides, padding_stride, grad_query_strides,
    tile_count, heads, group, queries, keys, scale, seed: tl.int64, seed_at, threshold, inverse,
    ACTIVATION: tl.constexpr, CLOSED_AT_ZERO: tl.constexpr, FOLD_SCALE: tl.constexpr, STATISTICS: tl.constexpr,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dq of one block of queries, and r_i dO_i / (1 - p), r_i rho_i and r_i dT_i ln 2 for the next kernel.

    scaled_gradient is None, and not written, where it would be dO itself.
    """
    all_queries = queries
    batch, head, start, first_query, queries, first_key, keys = locate(
        tiles, tile_count, heads, queries, keys, BLOCK_Q, True
    )
    if start >= queries:
        return
    rows = start + tl.arange(0, BLOCK_Q)
    inside = rows < queries
    offset = load_offset(query_offset)
    query = head_of(query, batch, head, query_strides)
    grad_output = head_of(grad_output, batch, head, grad_output_strides)
    key = head_of(key, batch, head // group, key_strides)
    value = head_of(value, batch, head // group, value_strides)
    q = load_rows(query, first_query + start, inside, query_strides[2], BLOCK_Q, HEAD_DIM, DIM, True)
    do = load_rows(grad_output, first_query + start, inside, grad_output_strides[2], BLOCK_Q, HEAD_DIM, DIM, True)
    r = load_row_scale(row_scale, batch, head, row_scale_strides, first_query + rows, inside)
    index = (batch * heads + head) * all_queries + first_query + rows
    gain, log_gain = load_gains(grad_sum, grad_sum_log, index, inside, r, scale, STATISTICS, FOLD_SCALE)
    if STATISTICS >= 1:
        tl.store(scaled_gain + index, r * gain, mask=inside)
    if STATISTICS == 2:
        tl.store(scaled_log_gain + index, r * log_gain, mask=inside)
    if scaled_gradient is not None:
        scaled_gradient = head_of(scaled_gradient, batch, head, grad_query_strides)
        scaled = do.to(tl.float32) * (r * inverse)[:, None]
        store_rows(scaled_gradient, first_query + start, inside, grad_query_strides[2], scaled, BLOCK_Q, HEAD_DIM, DIM)
    if DROPOUT:  # 1/(1 - p) is applied to the sum
        gain, log_gain = gain / inverse, log_gain / inverse
        row_key = dropout_key(load_seed(seed, seed_at), batch, head, first_query + rows)[:, None]

    dq = tl.zeros([BLOCK_Q, DIM], dtype=tl.float32)
    first, all_from, whole, end = visible_keys(start, queries, keys, offset, window, CAUSAL, BLOCK_Q, BLOCK_K)
    MASKED: tl.constexpr = key_padding_mask is not None or not EVEN
    for block in tl.range(first, end, BLOCK_K):
        columns = block + tl.arange(0, BLOCK_K)
        real = real_keys(key_padding_mask, batch, padding_stride, first_key, columns, keys)
        k = load_rows(key, first_key + block, real, key_strides[2], BLOCK_K, HEAD_DIM, DIM, MASKED)
        v = load_rows(value, first_key + block, real, value_strides[2], BLOCK_K, HEAD_DIM, DIM, MASKED)
        x = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if not FOLD_SCALE:
            x *= scale
        if CAUSAL and CLOSED_AT_ZERO:  # noqa: SIM102
            if block >= whole or (window is not None and block < all_from):
                x = tl.where(is_seen(columns[None, :], rows[:, None] + offset, window), x, 0.0)
        u = activate(x, ACTIVATION)
        du = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        if DROPOUT:
            du = tl.where(kept(row_key, block, threshold, BLOCK_Q, BLOCK_K), du, 0.0)
        if STATISTICS >= 1:
            du += gain[:, None]
        if STATISTICS == 2:
            du += log_gain[:, None] * log2_of(u)
        dx = activation_gradient(x, u, du, ACTIVATION)  # hidden keys were read as zeros: whatever dx, they add none
        if CAUSAL and not CLOSED_AT_ZERO:
            dx = tl.where(is_seen(columns[None, :], rows[:, None] + offset, window), dx, 0.0)
        dq = tl.dot(dx.to(k.dtype), k, acc=dq, input_precision=PRECISION)

    dq *= (scale * inverse * r)[:, None]
    grad_query = head_of(grad_query, batch, head, grad_query_strides)
    store_rows(grad_query, first_query + start, inside, grad_query_strides[2], dq, BLOCK_Q, HEAD_DIM, DIM)


@triton.jit(do_not_specialize=["tile_count", "queries", "keys", "query_offset", "window", "seed", "threshold"])
def key_value_gradient_kernel(
    scaled_gradient, scaled_gain, scaled_log_gain, query, key, value, key_padding_mask, grad_key, grad_value, tiles,
    query_offset, window, scaled_gradient_strides, query_strides, key_strides, value_strides, padding_stride,
    grad_key_strides,
    tile_count, heads, group, queries, keys, scale, seed: tl.int64, seed_at, threshold,
    ACTIVATION: tl.constexpr, CLOSED_AT_ZERO: tl.constexpr, FOLD_SCALE: tl.constexpr, STATISTICS: tl.constexpr,
    CAUSAL: tl.constexpr, EVEN: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys, summed over the `group` query heads that share them, in order: repeatable."""
    all_queries = queries
    batch, key_head, start, first_key, keys, first_query, queries = locate(
        tiles, tile_count, heads // group, keys, queries, BLOCK_K, False
    )
    if start >= keys:
        return
    columns = start + tl.arange(0, BLOCK_K)
    real = real_keys(key_padding_mask, batch, padding_stride, first_key, columns, keys)
    offset = load_offset(query_offset)
    if DROPOUT:
        seed = load_seed(seed, seed_at)
    key = head_of(key, batch, key_head, key_strides)
    value = head_of(value, batch, key_head, value_strides)
    k = load_rows(key, first_key + start, real, key_strides[2], BLOCK_K, HEAD_DIM, DIM, True)
    v = load_rows(value, first_key + start, real, value_strides[2], BLOCK_K, HEAD_DIM, DIM, True)

    dk = tl.zeros([BLOCK_K, DIM], dtype=tl.float32)
    dv = tl.zeros([BLOCK_K, DIM], dtype=tl.float32)
    # Query blocks before `begin` and from `stop` on see no key of this tile, those from `seen` to `all_until` see all.
    begin = start * 0
    seen = start * 0
    stop = queries
    all_until = queries
    if CAUSAL:
        begin = tl.maximum(start - offset, 0) // BLOCK_Q * BLOCK_Q
        seen = tl.maximum(start + BLOCK_K - 1 - offset, 0)
    if window is not None:
        stop = tl.minimum(queries, start + BLOCK_K - 1 - offset + window)
        all_until = start - offset + window
    for member in tl.range(0, group):
        head = key_head * group + member
        head_query = head_of(query, batch, head, query_strides)
        head_do = head_of(scaled_gradient, batch, head, scaled_gradient_strides)
        first_index = (batch * heads + head) * all_queries + first_query
        for block in tl.range(begin, stop, BLOCK_Q):
            rows = block + tl.arange(0, BLOCK_Q)
            inside = rows < queries
            q = load_rows(head_query, first_query + block, inside, query_strides[2], BLOCK_Q, HEAD_DIM, DIM, not EVEN)
            do = load_rows(
                head_do, first_query + block, inside, scaled_gradient_strides[2], BLOCK_Q, HEAD_DIM, DIM, not EVEN
            )
            x = tl.dot(k, tl.trans(q), input_precision=PRECISION)
            if not FOLD_SCALE:
                x *= scale
            if CAUSAL and CLOSED_AT_ZERO:  # noqa: SIM102
                if block < seen or (window is not None and block + BLOCK_Q > all_until):
                    x = tl.where(is_seen(columns[:, None], rows[None, :] + offset, window), x, 0.0)
            u = activate(x, ACTIVATION)
            du = tl.dot(v, tl.trans(do), input_precision=PRECISION)
            if CAUSAL and not CLOSED_AT_ZERO:
                u = tl.where(is_seen(columns[:, None], rows[None, :] + offset, window), u, 0.0)
            score, weight = x, u
            if DROPOUT:
                row_key = dropout_key(seed, batch, head, first_query + rows)[None, :]
                keep = kept(row_key, start, threshold, BLOCK_Q, BLOCK_K)
                score, weight = tl.where(keep, x, 0.0), tl.where(keep, u, 0.0)
                du = tl.where(keep, du, 0.0)
            if STATISTICS >= 1:
                du += tl.load(scaled_gain + first_index + rows, mask=inside, other=0.0)[None, :]
            if STATISTICS == 2:
                du += tl.load(scaled_log_gain + first_index + rows, mask=inside, other=0.0)[None, :] * log2_of(u)
            dx = activation_gradient(x, u, du, ACTIVATION)
            if CAUSAL and not CLOSED_AT_ZERO:
                dx = tl.where(is_seen(columns[:, None], rows[None, :] + offset, window), dx, 0.0)
            dv = tl.dot(narrow(score, weight, do.dtype, ACTIVATION), do, acc=dv, input_precision=PRECISION)
            dk = tl.dot(dx.to(q.dtype), q, acc=dk, input_precision=PRECISION)

    # A padded key was read as zeros; where h(0) or h'(0) is not 0 it still gathered sums that are not its own.
    if FOLD_SCALE:
        dv *= scale
    dk = tl.where(real[:, None], dk * scale, 0.0)
    dv = tl.where(real[:, None], dv, 0.0)
    inside = columns < keys
    grad_key = head_of(grad_key, batch, key_head, grad_key_strides)
    grad_value = head_of(grad_value, batch, key_head, grad_key_strides)
    store_rows(grad_key, first_key + start, inside, grad_key_strides[2], dk, BLOCK_K, HEAD_DIM, DIM)
    store_rows(grad_value, first_key + start, inside, grad_key_strides[2], dv, BLOCK_K, HEAD_DIM, DIM)
