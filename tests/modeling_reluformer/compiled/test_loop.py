"""The compiled extension against the float64 reference, and against the rules of the Python loop that it replaces."""

import importlib.util
import shutil

import pytest
import torch

import reluformer.attention_blockwise as blockwise
import reluformer.attention_fused as fused
import reluformer.attention_operator as operator
from reluformer import relu_attention
from reluformer.compiled import loop as compiled

from ..attention_cases import (
    LENGTHS,
    WIDTHS,
    Inputs,
    assert_equals_reference,
    gradients,
    masks,
    random_inputs,
    relative_error,
)

needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None
    or importlib.util.find_spec("ninja") is None
    or not torch.backends.mkldnn.is_available(),
    reason="needs a C++ compiler, ninja and a torch with oneDNN",
)


@pytest.fixture
def extension(monkeypatch):
    """Every call goes to the extension, in small blocks."""
    monkeypatch.setenv(compiled.VARIABLE, "1")
    monkeypatch.setattr(fused, "_is_small", lambda *call: False)
    monkeypatch.setattr(blockwise, "LARGEST_BLOCK", 24)
    # a call that does not reach the extension fails
    monkeypatch.setattr(operator, "blockwise_forward", None)
    monkeypatch.setattr(operator, "blockwise_backward", None)


def inputs_of(**sizes) -> Inputs:
    return random_inputs(**{"dtype": torch.float32, **sizes})


@needs_compiler
@pytest.mark.parametrize("statistics", ["none", "sum", "sum+entropy"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (15, 15), (57, 57), (33, 65), (40, 9), (1, 20)])
def test_equals_reference(extension, queries, keys, statistics):
    torch.manual_seed(queries)
    for mask in masks(2, queries, keys):
        assert_equals_reference(inputs_of(queries=queries, keys=keys), mask, statistics=statistics)


@needs_compiler
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_in_blocks_of_the_usual_size(monkeypatch, length):
    monkeypatch.setenv(compiled.VARIABLE, "1")
    for mask in ({}, {"causal": True}):
        assert_equals_reference(inputs_of(batch=1, heads=3, queries=length, head_dim=32), mask)


@needs_compiler
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width(extension, width):
    assert_equals_reference(inputs_of(queries=65, keys=70, head_dim=width), {"causal": True})


@needs_compiler
def test_grouped_keys_shared_row_scales_and_strides(extension):
    inputs = inputs_of(heads=6, key_heads=2, queries=50, keys=61)
    query = inputs.query.transpose(1, 2).contiguous().transpose(1, 2)
    key = torch.stack([inputs.key, inputs.key], dim=-1).flatten(-2)[..., ::2]
    strided = Inputs(query, key, inputs.value, inputs.row_scale[:, :1])
    for mask in masks(2, 50, 61):
        assert_equals_reference(strided, mask)


@needs_compiler
def test_packed_sequences_equal_their_parts(extension):
    torch.manual_seed(0)
    lengths = (30, 0, 1, 26)
    inputs = inputs_of(batch=1, queries=sum(lengths))
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    for mask in (None, torch.rand(1, sum(lengths)) < 0.7):
        options = {"causal": True, "row_scale": inputs.row_scale}
        packed = {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "key_padding_mask": mask}
        found = relu_attention(*inputs[:3], **packed, **options)
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            query, key, value, row_scale = (tensor[:, :, start:stop] for tensor in inputs)
            real = None if mask is None else mask[:, start:stop]
            part = relu_attention(query, key, value, row_scale=row_scale, causal=True, key_padding_mask=real)
            torch.testing.assert_close(found[:, :, start:stop], part, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_dead_rows_and_nan(extension):
    inputs = inputs_of(queries=40)
    dead = inputs._replace(query=-inputs.query.abs(), key=inputs.key.abs()).leaves()
    found = relu_attention(*dead[:3], row_scale=dead[3], statistics="sum+entropy")
    assert all(not item.any() for item in (*found, *gradients(found, dead)[:3]))
    inputs.key[0, 0, 3] = torch.nan
    output, row_sum, row_sum_log = relu_attention(*inputs[:3], row_scale=inputs.row_scale, statistics="sum+entropy")
    for item in (output, row_sum, row_sum_log):
        assert item[0, 0].isnan().all() and not item[1].isnan().any()


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinity_stays_where_the_python_loop_has_it(extension, monkeypatch, dtype):
    """An infinite query gives infinite statistics and gradients that are not finite, as in the Python loop."""
    inputs = inputs_of(queries=40, head_dim=16, dtype=dtype)
    inputs.query[0, 0, 3], inputs.key[0, 0] = torch.inf, inputs.key[0, 0].abs() + 0.5
    results = []
    for is_compiled in (True, False):
        if not is_compiled:
            monkeypatch.setattr(operator, "serves", lambda *call: False)
            monkeypatch.setattr(operator, "blockwise_forward", blockwise.blockwise_forward)
            monkeypatch.setattr(operator, "blockwise_backward", blockwise.blockwise_backward)
        leaves = inputs.leaves()
        forward = relu_attention(*leaves[:3], row_scale=leaves[3], statistics="sum+entropy")
        results.append((*forward, *gradients(forward, leaves)))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())
    output, row_sum, row_sum_log, grad_query = results[0][:4]
    assert row_sum[0, 0, 3] == torch.inf and not row_sum_log[0, 0, 3].isfinite()
    assert not output[0, 0, 3].isfinite().any() and not grad_query[0, 0, 3].isfinite().any()


@needs_compiler
def test_bfloat16_errs_no_more_than_the_python_loop(extension, monkeypatch):
    torch.manual_seed(0)
    exact = inputs_of(batch=1, queries=200, head_dim=32)
    rounded = Inputs(*(tensor.bfloat16() for tensor in exact[:3]), exact.row_scale)
    errors = {}
    for wanted in ("0", "1"):
        monkeypatch.setenv(compiled.VARIABLE, wanted)
        monkeypatch.undo() if wanted == "0" else None
        leaves, best = rounded.leaves(), rounded.leaves(torch.float64)
        found = relu_attention(*leaves[:3], row_scale=leaves[3], statistics="sum+entropy")
        expected = relu_attention(*best[:3], row_scale=best[3], statistics="sum+entropy")
        pairs = zip((*found, *gradients(found, leaves)), (*expected, *gradients(expected, best)), strict=True)
        errors[wanted] = [relative_error(one, other) for one, other in pairs]
    assert all(ours <= 1.5 * python + 1e-6 for ours, python in zip(errors["1"], errors["0"], strict=True)), errors


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropout_is_one_mask_in_both_passes_however_blocks_are_cut(extension, monkeypatch, dtype):
    """Keys that all score alike: the output is the mask times the values, and the gradient of the values its transpose."""
    p, length = 0.3, 96
    query, key = torch.ones(1, 2, length, 4, dtype=dtype), torch.ones(1, 2, length, 4, dtype=dtype)
    value = torch.eye(length, dtype=dtype).expand(1, 2, -1, -1).clone().requires_grad_()
    results = []
    for largest in (24, 512):
        monkeypatch.setattr(blockwise, "LARGEST_BLOCK", largest)
        torch.manual_seed(5)
        output = relu_attention(query, key, value, row_scale=None, scale=0.25, dropout_p=p)
        (gradient,) = torch.autograd.grad(output, value, torch.eye(length, dtype=dtype).expand_as(output))
        torch.testing.assert_close(gradient, output.detach().transpose(-1, -2))  # each is the mask
        results.append(output.detach())
    assert torch.equal(*results)
    values = results[0].float().unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / (1 - p)]), rtol=1e-2, atol=0)
    share = (results[0] > 0).double().mean()
    assert abs(share - (1 - p)) < 4 * (p * (1 - p) / results[0].numel()) ** 0.5
    assert not torch.equal(results[0][0, 0], results[0][0, 1])
    torch.manual_seed(6)
    assert not torch.equal(relu_attention(query, key, value, row_scale=None, scale=0.25, dropout_p=p), results[0])


@needs_compiler
def test_dropout_is_not_correlated_along_rows_or_columns(extension):
    p, length = 0.5, 256
    query = torch.ones(1, 1, length, 4)
    value = torch.eye(length)[None, None]
    torch.manual_seed(0)
    kept = (relu_attention(query, query, value, row_scale=None, dropout_p=p)[0, 0] > 0).double() - (1 - p)
    for neighbours in ((kept[1:] * kept[:-1]), (kept[:, 1:] * kept[:, :-1]), (kept[1:, 1:] * kept[:-1, :-1])):
        assert abs(neighbours.mean()) < 4 * p * (1 - p) / neighbours.numel() ** 0.5
    for axis in (0, 1):  # no row and no column is kept more often than chance has it
        assert kept.mean(axis).abs().max() < 5 * (p * (1 - p) / length) ** 0.5


@needs_compiler
def test_threads_change_no_bit_and_stay_as_they_were(extension):
    inputs = inputs_of(batch=2, heads=4, queries=130)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = inputs.leaves()
            torch.manual_seed(0)
            found = relu_attention(*leaves[:3], row_scale=leaves[3], statistics="sum+entropy", dropout_p=0.1)
            results.append((*found, *gradients(found, leaves)))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, other) for again in results[1:] for one, other in zip(results[0], again, strict=True))


def test_what_it_does_not_serve_takes_the_python_loop(monkeypatch):
    monkeypatch.setenv(compiled.VARIABLE, "1")
    assert not compiled.serves(torch.zeros(1, dtype=torch.float64), "relu")
    assert not compiled.serves(torch.zeros(1), "gelu")
    monkeypatch.setenv(compiled.VARIABLE, "0")
    assert not compiled.serves(torch.zeros(1), "relu")
    monkeypatch.setenv(compiled.VARIABLE, "yes")
    with pytest.raises(ValueError, match="RELUFORMER_COMPILED='yes' is unknown; 1 builds"):
        compiled.serves(torch.zeros(1), "relu")


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs a torch with oneDNN")
@pytest.mark.parametrize(
    ("dtype", "statistics", "dropout_p", "plain"),
    [
        (torch.bfloat16, "none", 0.0, True),
        (torch.bfloat16, "sum", 0.0, True),
        (torch.bfloat16, "sum+entropy", 0.0, False),
        (torch.bfloat16, "none", 0.1, False),
        (torch.float32, "none", 0.0, False),
    ],
)
def test_short_rows_take_plain_products_where_these_are_faster(monkeypatch, dtype, statistics, dropout_p, plain):
    monkeypatch.setenv(compiled.VARIABLE, "1")
    short, long = (torch.empty(2, 8, length, 64, dtype=dtype) for length in (256, 257))
    assert fused._is_small(short, short, "relu", statistics, dropout_p) is plain
    assert not fused._is_small(long, long, "relu", statistics, dropout_p)


def test_a_failing_build_says_what_it_needs(monkeypatch, tmp_path):
    from torch.utils import cpp_extension

    def fail(*arguments, **options):
        raise RuntimeError("Ninja is required to load C++ extensions\nand more")

    monkeypatch.setattr(cpp_extension, "load", fail)
    with pytest.raises(
        RuntimeError, match=r"could not be built \(Ninja is required to load C\+\+ extensions\); it needs ninja"
    ):
        compiled._operators.__wrapped__()


def test_a_copy_without_the_loop_says_that_it_computes_in_python(monkeypatch, caplog):
    """The code of a model on the Hub carries no compiled loop, and registers none."""
    monkeypatch.setattr(operator, "_registered", [])
    operator._warn_about_missing_loop.cache_clear()
    query = torch.randn(1, 1, 300, 8)
    monkeypatch.setenv(compiled.VARIABLE, "1")
    relu_attention(query, query, query, row_scale=None)
    assert "the compiled attention comes with the package `reluformer`" in caplog.text
