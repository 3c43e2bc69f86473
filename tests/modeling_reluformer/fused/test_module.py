"""`ReLUAttention` beside `nn.MultiheadAttention`, whose interface it has, and against the float64 reference."""

import copy
import inspect
import warnings
from itertools import product

import pytest
import torch
from torch import nn

from reluformer import ReLUAttention
from reluformer.modeling_reluformer.attention_reluformer import reference_attention
from reluformer.modeling_reluformer.loss_reluformer import row_entropy, row_penalty

EMBED, HEADS = 24, 4
CAUSAL = nn.Transformer.generate_square_subsequent_mask(7)
WIDTHS = ({}, {"kdim": 10}, {"vdim": 6, "bias": False}, {"bias": False})


def pair(**options):
    """ReLU attention and softmax attention of torch with the same weights, in float64."""
    ours = ReLUAttention(EMBED, HEADS, dtype=torch.float64, gamma=3.0, **options)
    theirs = nn.MultiheadAttention(EMBED, HEADS, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in theirs.parameters():  # the biases begin at 0
            parameter.normal_(std=0.3)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def states(module, queries=7, keys=7, batch=3):
    """query, key, value as the module takes them; batch=None: without a batch."""
    found = []
    for length, width in ((queries, EMBED), (keys, module.kdim), (keys, module.vdim)):
        shape = (length, width) if batch is None else (batch, length, width)
        tensor = torch.randn(shape, dtype=torch.float64)
        found.append(tensor if batch is None or module.batch_first else tensor.transpose(0, 1))
    return found


def by_hand(module, query, key, value, hidden=None):
    """Output, weights (batch, heads, queries, keys), S, T and n_i (batch, heads, queries); hidden broadcasts to the
    weights."""
    if query.dim() == 2:
        query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
    elif not module.batch_first:
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    if module.in_proj_weight is None:
        weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    else:
        weights = module.in_proj_weight.split(EMBED)
    biases = (0, 0, 0) if module.in_proj_bias is None else module.in_proj_bias.split(EMBED)
    heads = [
        (tensor @ weight.T + bias).view(*tensor.shape[:2], HEADS, EMBED // HEADS).permute(0, 2, 1, 3)
        for tensor, weight, bias in zip((query, key, value), weights, biases, strict=True)
    ]
    shape = (query.shape[0], HEADS, query.shape[1], key.shape[1])
    visible = torch.ones(shape, dtype=torch.bool) if hidden is None else ~hidden.expand(shape)
    count = visible.sum(-1).clamp_min(1).double()
    if module.settings.scaling == "variance":
        scale = 1 / (module.settings.gamma * (count / 2) ** 0.5)
    else:
        scale = count ** (-1.0 if module.settings.scaling == "length" else 0.0)
    found = reference_attention(
        *heads,
        activation=module.settings.activation,
        mask=visible,
        row_scale=scale,
        statistics="sum+entropy" if module.settings.activation == "relu" else "none",
    )
    output = module.out_proj(found.output.transpose(1, 2).flatten(2))
    return output, found.weights, found.row_sum, found.row_sum_log, count


def in_the_order_of(module, output, batched=True):
    """(batch, length, features) as the module returns it."""
    if not batched:
        return output[0]
    return output if module.batch_first else output.transpose(0, 1)


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(("batch", "queries"), [(3, 5), (None, 5), (3, 0), (0, 5)])
def test_results_have_the_shapes_of_nn_multihead_attention(widths, batch_first, batch, queries):
    ours, theirs = pair(batch_first=batch_first, **widths)
    query, key, value = states(ours, queries, 7, batch)
    for need_weights, average in product((False, True), repeat=2):
        options = {"need_weights": need_weights, "average_attn_weights": average}
        found, usual = ours(query, key, value, **options), theirs(query, key, value, **options)
        assert type(found) is type(usual) and len(found) == len(usual) == 2
        output, weights, *_ = by_hand(ours, query, key, value)
        assert_close(found[0], in_the_order_of(ours, output, batch is not None))
        assert found[0].shape == usual[0].shape
        assert (found[1] is None) == (usual[1] is None) == (not need_weights)
        if need_weights:
            weights = weights.mean(1) if average else weights
            assert_close(found[1], weights if batch is not None else weights[0])
            assert found[1].shape == usual[1].shape


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("kind", [torch.bool, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"activation": "gelu", "scaling": "none"}, {"scaling": "length"}], ids=["relu", "gelu", "length"]
)
def test_every_mask(need_weights, kind, options):
    """Forward and backward; also rows that see nothing, which nn.MultiheadAttention makes NaN."""
    module = ReLUAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64, **options)
    right = torch.arange(7).expand(3, -1) >= torch.tensor([[7], [4], [2]])
    causal = torch.ones(5, 7, dtype=torch.bool).triu(1)
    masks = (None, causal, torch.rand(5, 7) < 0.4, torch.rand(3 * HEADS, 5, 7) < 0.4)
    for padding, mask in product((None, right, right.flip(1), torch.ones_like(right)), masks):
        hidden = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        if padding is not None:
            hidden = hidden | padding[:, None, None, :]
        if mask is not None:
            hidden = hidden | (mask.view(3, HEADS, 5, 7) if mask.dim() == 3 else mask)
        given = [
            one
            if one is None or kind == torch.bool
            else torch.zeros(one.shape, dtype=kind).masked_fill(one, -torch.inf)
            for one in (padding, mask)
        ]
        hints = [{"attn_mask": given[1]}]
        if mask is causal:
            hints += [{"attn_mask": given[1], "is_causal": True}, {"is_causal": True}]
        tensors = [tensor.requires_grad_() for tensor in states(module, 5, 7, 3)]
        leaves, noise = (*tensors, *module.parameters()), torch.randn(3, 5, EMBED, dtype=torch.float64)
        outputs = [by_hand(module, *tensors, hidden)[0]]
        options = {"key_padding_mask": given[0], "need_weights": need_weights}
        outputs += [module(*tensors, **options, **hint)[0] for hint in hints]
        first, *others = ((one, *torch.autograd.grad((one * noise).sum(), leaves)) for one in outputs)
        for other in others:
            assert all(one.isfinite().all() for one in other)
            assert_close(other, first)


@pytest.mark.parametrize("options", [{"need_weights": False}, {}, {"attn_mask": torch.zeros(7, 7, dtype=torch.bool)}])
def test_padding_may_hold_anything(options):
    module = ReLUAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64)
    query, source = torch.randn(2, 3, 7, EMBED, dtype=torch.float64)
    padding = torch.arange(7).expand(3, -1) >= torch.tensor([[7], [4], [2]])
    outputs = [
        module(query, keys, keys, key_padding_mask=padding, **options)[0]
        for keys in (source, source.masked_fill(padding.unsqueeze(-1), torch.nan))
    ]
    assert_close(*outputs)


@pytest.mark.parametrize("need_weights", [False, True])
def test_regularization_is_equation_7_over_the_real_rows(need_weights):
    module = ReLUAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64, gamma=3.0, return_regularization=True)
    x = states(module)[0]
    source = torch.randn(3, 7, EMBED, dtype=torch.float64)  # its padding says nothing about the rows
    padding = torch.arange(7).expand(3, -1) >= torch.tensor([[7], [4], [2]])
    of_heads, causal = torch.rand(3 * HEADS, 7, 7) < 0.4, torch.ones(7, 7, dtype=torch.bool).triu(1)
    hidden, rows, every = padding[:, None, None, :], torch.arange(7).expand(3, -1) < 5, torch.ones_like(padding)
    both = hidden | of_heads.view(3, HEADS, 7, 7)
    for keys, options, unseen, real in (
        (x, {}, None, every),
        (x, {"key_padding_mask": padding}, hidden, ~padding),
        (x, {"key_padding_mask": padding, "is_causal": True}, hidden | causal, ~padding),
        (x, {"key_padding_mask": padding, "attn_mask": of_heads}, both, ~padding),
        (source, {"key_padding_mask": padding}, hidden, every),
        (source, {"key_padding_mask": padding, "query_padding_mask": ~rows}, hidden, rows),
    ):
        _, weights, found = module(x, keys, keys, need_weights=need_weights, **options)
        assert (weights is not None) == need_weights and found.shape == ()
        _, _, row_sum, row_sum_log, count = by_hand(module, x, keys, keys, unseen)
        entropy = row_entropy(row_sum, row_sum_log)
        assert_close(found, row_penalty(row_sum, entropy, count, 0.7).transpose(1, 2)[real].mean())
    assert len(module(x, x, x, return_regularization=False)) == 2
    gradient = torch.autograd.grad(found, module.in_proj_weight)[0]
    assert gradient[: 2 * EMBED].abs().sum() > 0 and (gradient[2 * EMBED :] == 0).all()


def test_parameters_and_initialisation_are_those_of_nn_multihead_attention():
    for widths, batch_first in product(WIDTHS, (False, True)):
        modules = []
        for kind in (ReLUAttention, nn.MultiheadAttention):
            torch.manual_seed(3)
            modules.append(kind(EMBED, HEADS, 0.1, batch_first=batch_first, **widths))
        ours, theirs = (module.state_dict() for module in modules)
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        modules[1].load_state_dict(ours)
        modules[0]._reset_parameters()
    names = list(inspect.signature(nn.MultiheadAttention).parameters)
    assert list(inspect.signature(ReLUAttention).parameters)[: len(names)] == names
    names = list(inspect.signature(nn.MultiheadAttention.forward).parameters)
    assert list(inspect.signature(ReLUAttention.forward).parameters)[: len(names)] == names


def transformer_encoder(attention, **options):
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 32, batch_first=True, dtype=torch.float64)
    if attention is not None:
        layer.self_attn = attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch says that it will not use nested tensors
        return nn.TransformerEncoder(layer, 2, **options)


def test_the_fast_path_of_the_library_does_not_pass_it_by():
    """In evaluation without gradients, nn.TransformerEncoderLayer computes a softmax of its own where it is let."""
    ours, theirs = pair(batch_first=True)
    x = torch.randn(3, 7, EMBED, dtype=torch.float64)
    padding = torch.arange(7).expand(3, -1) >= torch.tensor([[7], [4], [2]])
    for enable_nested_tensor in (True, False):
        encoder = transformer_encoder(ours, enable_nested_tensor=enable_nested_tensor).eval()
        usual = copy.deepcopy(encoder)
        for layer in usual.layers:
            layer.self_attn = theirs
        for options in ({}, {"src_key_padding_mask": padding}, {"mask": CAUSAL.double()}):
            slow = encoder(x, **options)  # gradients are wanted: never the fast path
            with torch.no_grad():
                fast = encoder(x, **options)
            assert_close(fast, slow)
            assert (slow - usual(x, **options))[~padding].abs().max() > 1e-3


def test_it_is_refused_where_the_encoder_was_built_for_nested_tensors():
    encoder = transformer_encoder(None).eval()
    for layer in encoder.layers:
        layer.self_attn = ReLUAttention(EMBED, HEADS, batch_first=True, dtype=torch.float64)
    padding = torch.tensor([[False] * 5 + [True] * 2])
    warnings.filterwarnings("ignore", "The PyTorch API of nested tensors", UserWarning)  # torch makes one
    with torch.no_grad(), pytest.raises(ValueError, match="enable_nested_tensor=False"):
        encoder(torch.randn(1, 7, EMBED, dtype=torch.float64), src_key_padding_mask=padding)


def test_dropout_is_of_training_alone():
    module = ReLUAttention(EMBED, HEADS, dropout=0.5, batch_first=True)
    x = torch.randn(2, 7, EMBED)
    for need_weights in (False, True):
        module.train()
        assert not torch.equal(*(module(x, x, x, need_weights=need_weights)[0] for _ in range(2)))
        module.eval()
        torch.testing.assert_close(*(module(x, x, x, need_weights=need_weights)[0] for _ in range(2)))


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, CAUSAL], ids=["full", "float"])
def test_it_compiles_in_one_graph(given):
    module = ReLUAttention(EMBED, HEADS, batch_first=True, return_regularization=True)
    x = torch.randn(2, 7, EMBED)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    options = {"key_padding_mask": padding, "need_weights": False, "attn_mask": given}
    output, _, regularization = module(x, x, x, **options)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")(x, x, x, **options)
    torch.testing.assert_close((compiled[0], compiled[2]), (output, regularization))
    (regularization + output.sum()).backward()
    expected = module.in_proj_weight.grad.clone()
    module.in_proj_weight.grad = None
    (compiled[2] + compiled[0].sum()).backward()
    torch.testing.assert_close(module.in_proj_weight.grad, expected)


def test_autocast_and_half_precision():
    x = torch.randn(2, 7, EMBED)
    module = ReLUAttention(EMBED, HEADS, batch_first=True, return_regularization=True)
    exact = module(x, x, x, need_weights=False)
    with torch.autocast("cpu", torch.bfloat16):
        for need_weights in (False, True):
            found = module(x, x, x, need_weights=need_weights)
            assert found[0].dtype == torch.bfloat16 and found[2].dtype == torch.float32
            torch.testing.assert_close(found[0].float(), exact[0], rtol=0.05, atol=0.02)
            torch.testing.assert_close(found[2], exact[2], rtol=0.2, atol=0.1)  # log S of rows that are nearly dead
    assert module.bfloat16()(*(x.bfloat16(),) * 3)[0].dtype == torch.bfloat16


X = torch.randn(2, 7, EMBED)
REFUSED = [
    ("are not supported by ReLUAttention: leave them out", {"add_bias_kv": True}, {}),
    ("'softmax' is not point-wise; .* For softmax, use nn.MultiheadAttention", {"activation": "softmax"}, {}),
    ("gamma=0 must be", {"gamma": 0}, {}),
    ("dropout must be a number from 0 to below 1; got 1.0", {"dropout": 1.0}, {}),
    ("those of 'gelu' can be", {"activation": "gelu", "return_regularization": True}, {}),
    ("L_reg needs weights that are never negative", {"activation": "gelu"}, {"return_regularization": True}),
    ("attn_mask has the dtype torch.float32 and other values than 0", {}, {"attn_mask": torch.full((7, 7), 0.5)}),
    ("attn_mask must be boolean, .* got torch.int64", {}, {"attn_mask": torch.zeros(7, 7).long()}),
    ("shape .* = \\(2, 7\\); got torch.bool \\(7,\\)", {}, {"key_padding_mask": torch.zeros(7).bool()}),
    ("attn_mask must be a .* got torch.bool \\(2, 7, 7\\)", {}, {"attn_mask": torch.zeros(2, 7, 7).bool()}),
    ("attn_mask must be a tensor of the shape .* got 0.0", {}, {"attn_mask": 0.0}),
    ("key_padding_mask must be a tensor of the shape .* got True", {}, {"key_padding_mask": True}),
    ("dropout must be a number from 0 to below 1; got '0.1'", {"dropout": "0.1"}, {}),
    ("gamma must be a number; got torch.float32 \\(4,\\)", {"gamma": torch.ones(4)}, {}),
    ("24, 10 and 24 features, .* got .*\\(2, 7, 24\\), .*\\(2, 7, 24\\)", {"kdim": 10}, {}),
    ("and the same length of key and value; got", {}, {"value": X[:, :5]}),
    ("one batch, .* got .* torch.float32 \\(1, 7, 24\\)", {}, {"key": X[:1], "value": X[:1]}),
    ("must be tensors .* got a ndarray, torch.float32", {}, {"query": X.numpy()}),
    ("must be tensors .* got torch.float32 \\(1, 2, 7, 24\\)", {}, dict.fromkeys(("query", "key", "value"), X[None])),
    ("must be tensors .* got torch.float32 \\(7, 24\\)", {}, {"query": X[0]}),
]


@pytest.mark.parametrize(("words", "built", "called"), REFUSED, ids=[words[:30] for words, *_ in REFUSED])
def test_what_is_not_supported_is_refused_by_name(words, built, called):
    with pytest.raises(ValueError, match=words):
        ReLUAttention(EMBED, HEADS, batch_first=True, **built)(**{"query": X, "key": X, "value": X, **called})
