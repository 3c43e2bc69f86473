"""`use_sparse_ffn`: what decodes is what the dense model decodes, nothing is saved, and what cannot be exact is refused."""

import copy
import io
import pickle
import re

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from reluformer import (
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForImageClassification,
    use_sparse_ffn,
)
from reluformer.modeling_reluformer.fused.compiled import library
from reluformer.modeling_reluformer.sparse_ffn import forward
from reluformer.modeling_reluformer.sparse_ffn.blocks import sparse_blocks
from reluformer.modeling_reluformer.sparse_ffn.weights import PreparedWeights

from ...conftest import random_tokens
from ..decoder_cases import decoder_model
from ..other_models.foreign_cases import llama_config
from ..vision_cases import vision_config
from .sparse_cases import MODELS, build, decoded, opt_model, t5_model

KINDS = (forward.SparseFeedForward, forward.SparseProjection)


@pytest.fixture(params=["compiled", "gather"])
def loop(request):
    """Both ways of computing, one after the other."""
    if request.param == "gather":
        with library.python_loop():
            yield request.param
        return
    if library.sparse_library(large=True) is None:
        pytest.skip("the compiled library cannot be built here")
    yield request.param


@pytest.fixture
def compiled():
    if library.sparse_library(large=True) is None:
        pytest.skip("the compiled library cannot be built here")


@pytest.fixture
def calls(monkeypatch):
    """The rows of every call that was computed sparsely."""
    seen = []
    for kind in KINDS:
        compute = kind.compute
        monkeypatch.setattr(
            kind, "compute", lambda self, rows, compute=compute: seen.append(len(rows)) or compute(self, rows)
        )
    return seen


def replaced(model) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(vars(part).get("forward"), KINDS)]


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_the_dense_model(loop, name, calls):
    before = torch.get_num_threads()
    for seed in range(2 if loop == "compiled" else 1):
        model = build(name, seed)
        expected = decoded(model), decoded(model, rows=3)
        assert use_sparse_ffn(model) is model
        calls.clear()
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found = decoded(model), decoded(model, rows=3)
                assert all(map(torch.equal, found, expected))
        finally:
            torch.set_num_threads(before)
        assert set(calls) == {1, 3}, "prompts of 12 tokens stay dense, and each step does not"


@pytest.mark.parametrize("name", ["translation", "t5-gated", "decoder-glu"])
def test_beams_are_those_of_the_dense_model(compiled, name):
    model = build(name)
    expected = decoded(model, num_beams=5)
    assert torch.equal(decoded(use_sparse_ffn(model), num_beams=5), expected)


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_few_rows_are_those_of_the_dense_model_in_every_dtype(loop, name):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.1)):
        model = build(name).to(dtype)
        with torch.no_grad():
            for part in model.parameters():  # biases too, and numbers that float32 does not hold
                part.add_(0.01 * torch.randn_like(part))
        ids = random_tokens(2, 4)
        arguments = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
        with torch.no_grad():
            expected = model(**arguments).logits
            found = use_sparse_ffn(model)(**arguments).logits
        assert (found - expected).norm() < tolerance * expected.norm()


def test_only_the_decoder_of_a_model_with_an_encoder_is_changed():
    model = build("t5")
    assert [block.name for block in sparse_blocks(model)] == [f"block.{i}.layer.2.DenseReluDense" for i in range(2)]
    use_sparse_ffn(model)
    assert len(replaced(model)) == 2 and not replaced(model.get_encoder())


@pytest.mark.parametrize("name", ["opt", "decoder-glu"])
def test_nothing_of_it_is_saved(tmp_path, name):
    model = build(name)
    model.save_pretrained(tmp_path / "before")
    names, config = list(model.state_dict()), model.config.to_dict()
    use_sparse_ffn(model).save_pretrained(tmp_path / "after")
    assert list(model.state_dict()) == names and model.config.to_dict() == config
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in sorted(tmp_path.iterdir())]
    assert files[0] == files[1] and len(files[0]) > 2
    assert not replaced(type(model).from_pretrained(tmp_path / "after"))


@pytest.mark.parametrize("name", ["opt", "llama", "decoder-dglu"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_skips_zeros_of_its_own_weights(compiled, name, how, calls):
    model = use_sparse_ffn(build(name))
    plain = copy.deepcopy(use_sparse_ffn(build(name), False))
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        assert file.tell() < 1.3 * sum(part.numel() for part in model.parameters()) * 4 + 60_000, (
            "the copies are left out"
        )
        other = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    expected = decoded(model)
    calls.clear()
    with torch.no_grad():
        for part in model.parameters():  # the first one's weights are not the copy's
            part.zero_()
    assert torch.equal(decoded(other), expected) and torch.equal(decoded(plain), expected) and calls
    modules = set(other.modules())
    for part in replaced(other):
        held = part.forward.block.module if isinstance(part.forward, KINDS[0]) else part.forward.linear
        assert held is part and held in modules


@pytest.mark.parametrize("name", ["opt", "llama", "t5"])
@pytest.mark.parametrize("change", ["optimizer", "fused optimizer", "load_state_dict", "assign", "dtype", "in place"])
def test_weights_that_change_are_followed(compiled, name, change, calls):
    model, other = use_sparse_ffn(build(name)), build(name, seed=5)
    decoded(model)
    expected = decoded(other if change != "in place" else build(name).requires_grad_(False))
    if change == "fused optimizer":  # it does not count its changes of a weight
        ids = random_tokens(1, 4)
        model(ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})).logits.sum().backward()
        torch.optim.AdamW(model.parameters(), lr=0.5, fused=True).step()
    elif change == "optimizer":
        torch.optim.SGD(model.parameters(), lr=0.5).step(lambda: descend(model, other))
    if "optimizer" in change:
        expected = decoded(copy.deepcopy(use_sparse_ffn(copy.deepcopy(model), False)))
    elif change in ("load_state_dict", "assign"):
        model.load_state_dict(other.state_dict(), assign=change == "assign")
    elif change == "dtype":
        model, other = model.bfloat16(), other.bfloat16()
        model.load_state_dict(other.state_dict())
        expected = decoded(use_sparse_ffn(build(name, seed=5).bfloat16()))
    else:
        with torch.no_grad():
            for part in model.parameters():
                part.mul_(2).mul_(0.5)
    calls.clear()
    assert torch.equal(decoded(model), expected) and calls


def test_a_weight_that_turns_in_its_place_and_a_bias_alone_are_followed():
    linear = nn.Linear(6, 6).requires_grad_(False)
    prepared = PreparedWeights(linear, transposed=False, int8=False)
    assert torch.equal(prepared.current().weight, linear.weight)
    linear.weight = nn.Parameter(linear.weight.detach().t())
    assert torch.equal(prepared.current().weight, linear.weight)
    linear.bfloat16()
    prepared.current()
    with torch.no_grad():
        linear.bias.add_(1)
    assert torch.equal(prepared.current().bias, linear.bias.float())


def descend(model, other) -> float:
    for part, wanted in zip(model.parameters(), other.parameters(), strict=True):
        part.grad = part.detach() - wanted.detach()
    return 0.0


def test_it_is_undone(calls):
    for name in ("opt", "llama"):
        model = use_sparse_ffn(build(name))
        assert replaced(model)
        assert use_sparse_ffn(model, False) is model and not replaced(model)
        calls.clear()  # those that compare with the forward of the class
        decoded(model)
        assert not calls and not any("forward" in vars(part) for part in model.modules())
        use_sparse_ffn(model, False)


@pytest.mark.parametrize("name", ["opt", "decoder-glu"])
def test_training_gradients_autocast_compilation_and_hooks_are_dense(name, calls):
    model, ids = use_sparse_ffn(build(name)), random_tokens(1, 3)
    calls.clear()
    model(ids).logits.sum().backward()
    assert all(part.grad is not None for part in replaced(model)[0].parameters())
    with torch.no_grad():
        model.train()(ids)
        with torch.autocast("cpu", torch.bfloat16):
            model.eval()(ids)
        torch.func.vmap(lambda row: model(row.unsqueeze(0)).logits)(ids.expand(2, -1))
        assert not calls
        model(ids)
        assert set(calls) == {3}
        calls.clear()
        model(random_tokens(1, 9))
        model(random_tokens(3, 3))
        assert not calls, "more than 8 rows"
        seen = []
        for block in sparse_blocks(use_sparse_ffn(model, False)):
            block.projections[block.second].register_forward_pre_hook(lambda module, inputs: seen.append(1))
        use_sparse_ffn(model)
        seen.clear()  # those of the comparison with the forward of the class
        model(ids)
    assert len(seen) == 2


@pytest.mark.slow
def test_a_graph_is_traced_with_the_dense_network(calls):
    model, ids = use_sparse_ffn(build("decoder-glu")), random_tokens(1, 3)
    calls.clear()
    with torch.no_grad():
        expected = use_sparse_ffn(copy.deepcopy(model), False)(ids).logits
        found = torch.compile(model, fullgraph=True, backend="eager")(ids).logits
    torch.testing.assert_close(found, expected)
    assert not calls


@pytest.mark.parametrize("name", MODELS)
def test_int8_is_near_the_dense_model(compiled, name, calls):
    model = build(name)
    ids = random_tokens(2, 4)
    arguments = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    with torch.no_grad():
        expected = model(**arguments).logits
        found = use_sparse_ffn(model, int8=True)(**arguments).logits
        assert calls and not torch.equal(found, expected)
        assert (found - expected).norm() < 0.05 * expected.norm()
        assert torch.equal(use_sparse_ffn(model, False)(**arguments).logits, expected)


def test_int8_without_a_compiled_library_is_refused_and_changes_nothing():
    model = use_sparse_ffn(build("llama"))
    before = replaced(model)[0].forward
    with (
        library.python_loop(),
        pytest.raises(ValueError, match=r"int8=True\) needs the compiled library, which cannot be"),
    ):
        use_sparse_ffn(model, int8=True)
    assert replaced(model)[0].forward is before


class Threshold(nn.Module):
    """An activation that torch computes, with zeros of its own."""

    gives_exact_zeros = True

    def forward(self, scores):
        activated = nn.functional.silu(scores)
        return activated.masked_fill(activated.abs() < 0.3, 0)


@pytest.mark.parametrize("name", ["opt", "decoder", "decoder-glu", "decoder-dglu", "translation"])
def test_other_activations_with_zeros_are_computed_by_torch(loop, name, calls):
    model = build(name)
    for block in sparse_blocks(model):
        setattr(block.module, block.function, Threshold())
    expected = decoded(model)
    assert torch.equal(decoded(use_sparse_ffn(model)), expected) and calls


class ScaledMLP(nn.Module):
    """Named as a Llama's, and more than that."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.act_fn = nn.ReLU()

    def forward(self, x):
        return 3 * self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class NormedMLP(ScaledMLP):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)


def llama(**fields):
    return LlamaForCausalLM(llama_config(**{"hidden_act": "relu", "intermediate_size": 16, **fields}))


def changed(change):
    model = llama()
    change(model.model.layers[1])
    return model


def hooked(layer):
    layer.mlp.down_proj.forward = layer.mlp.down_proj.forward


REFUSED = {
    "silu": (
        lambda: llama(hidden_act="silu"),
        "model.layers.0.mlp (LlamaMLP) computes SiLU…exact zeros…relu, relu2, relu6",
    ),
    "gelu": (
        lambda: opt_model(activation_function="gelu"),
        "model.decoder.layers.0 (OPTDecoderLayer) computes GELUActivation",
    ),
    "gated gelu": (
        lambda: t5_model(feed_forward_proj="gated-gelu"),
        "computes NewGELUActivation, which gives no exact zeros",
    ),
    "ours with gelu": (lambda: decoder_model(hidden_act="gelu"), "(ReLUFormerMLP) computes GELUActivation"),
    "two activations": (
        lambda: changed(lambda layer: setattr(layer.mlp, "up_fn", nn.SiLU())),
        "layers.1.mlp (LlamaMLP) computes SiLU",
    ),
    "gpt-2": (
        lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=9, activation_function="relu")),
        "GPT2LMHeadModel has no feed-forward network with projections called gate_proj/up_proj/down_proj",
    ),
    "bert": (
        lambda: BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=9)),
        "BertModel has no feed-forward network",
    ),
    "pictures": (
        lambda: ReLUFormerForImageClassification(vision_config(hidden_act="relu")),
        "takes pixel_values and decodes nothing",
    ),
    "quantized": (
        lambda: torch.ao.quantization.quantize_dynamic(llama(), {nn.Linear}),
        "Linear, use_sparse_ffn needs nn.Linear. Quantized weights: take the model before",
    ),
    "an adapter": (
        lambda: changed(lambda layer: setattr(layer.mlp, "up_proj", nn.Sequential(nn.Linear(16, 16)))),
        "layers.1.mlp (LlamaMLP): up_proj is a torch.nn.modules.container.Sequential",
    ),
    "a replaced forward": (lambda: changed(hooked), "the forward of down_proj was replaced, by hooks of accelerate"),
    "two dtypes": (
        lambda: changed(lambda layer: layer.mlp.down_proj.bfloat16()),
        "of torch.bfloat16 and torch.float32; give them one dtype",
    ),
    "no memory": (lambda: llama().to("meta"), "gate_proj is on meta, use_sparse_ffn serves models on a CPU"),
    "another forward": (
        lambda: changed(lambda layer: setattr(layer, "mlp", ScaledMLP())),
        "layers.1.mlp (ScaledMLP) does not compute down_proj(act_fn(gate_proj(x)) * up_proj(x))",
    ),
    "more weights": (
        lambda: changed(lambda layer: setattr(layer, "mlp", NormedMLP())),
        "(NormedMLP) holds norm beside gate_proj",
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_exact_zeros_is_refused_and_left_as_it_was(case):
    make, says = REFUSED[case]
    model = make()
    with pytest.raises(ValueError, match=".*".join(map(re.escape, says.split("…")))):
        use_sparse_ffn(model)
    assert not replaced(model)


def test_inference_tensors_are_refused():
    with torch.inference_mode():
        model = llama()
    with pytest.raises(ValueError, match=r"made in torch.inference_mode, in which changes of weights are not counted"):
        use_sparse_ffn(model)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="takes a Transformers model"):
        use_sparse_ffn(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="enabled='no' must be True or False"):
        use_sparse_ffn(build("opt"), "no")
    with pytest.raises(ValueError, match="leave int8 out"):
        use_sparse_ffn(build("opt"), False, int8=True)


def test_an_interruption_leaves_a_sparse_model_sparse(monkeypatch):
    model = use_sparse_ffn(build("opt"))
    before = [vars(part).get("forward") for part in model.modules()]

    def interrupt(model):
        raise KeyboardInterrupt

    monkeypatch.setattr("reluformer.modeling_reluformer.sparse_ffn.use.sparse_blocks", interrupt)
    with pytest.raises(KeyboardInterrupt):
        use_sparse_ffn(model)
    assert [vars(part).get("forward") for part in model.modules()] == before and any(before)


def test_a_projection_that_is_replaced_afterwards_is_an_error_not_another_result():
    for name, part in (("up_proj", nn.Linear(16, 40)), ("act_fn", Threshold())):
        model = use_sparse_ffn(build("llama"))
        setattr(model.model.layers[0].mlp, name, part)
        with pytest.raises(
            ValueError, match=rf"{name} was replaced by a {type(part).__name__} after use_sparse_ffn. Call"
        ):
            decoded(model)


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_weights_that_are_not_finite_give_what_the_dense_model_gives(loop, name):
    model, ids = build(name), random_tokens(1, 3)
    with torch.no_grad():
        block = sparse_blocks(model)[0]
        block.projections[block.second].weight[:, 0] = torch.inf
        expected = model(ids).logits
        found = use_sparse_ffn(model)(ids).logits
        assert torch.equal(found.isnan(), expected.isnan()) and expected.isnan().any()
    if loop == "compiled":
        with pytest.raises(ValueError, match="int8 cannot hold weights that are NaN or infinite"):
            use_sparse_ffn(model, int8=True)
        assert replaced(model)


def test_a_weight_that_is_not_finite_counts_behind_a_neuron_that_is_zero(loop):
    block = sparse_blocks(build("llama"))[0]
    with torch.no_grad():
        block.projections[block.first].weight[0] = 0
        block.projections[block.second].weight[3, 0] = torch.inf
        found = forward.SparseFeedForward(block, int8=False).compute(torch.randn(2, block.module.hidden_size))
    assert found[:, 3].isnan().all() and found.isnan().sum() == 2


def test_a_weight_that_is_not_finite_counts_behind_a_zero_of_one_projection(loop):
    linear = sparse_blocks(build("opt"))[0].projections["fc2"]
    hidden = torch.rand(2, linear.in_features)
    hidden[:, 0] = 0
    with torch.no_grad():
        linear.weight[3, 0] = torch.inf
        found = forward.SparseProjection(linear, second=True, int8=False).compute(hidden)
    assert found[:, 3].isnan().all() and found.isnan().sum() == 2


def test_hooks_of_all_modules_are_called(calls):
    model, ids, seen = use_sparse_ffn(build("llama")), random_tokens(1, 3), []
    calls.clear()
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module)))
    with torch.no_grad():
        model(ids)
        handle.remove()
        assert not calls and seen
        model(ids)
    assert calls


@pytest.mark.parametrize(
    "fields",
    [
        {"ffn_threshold": 0.05, "hidden_act": "silu"},
        {"ffn_top_k": 5},
        {"activation_sparsity_pattern": 0.9, "hidden_act": "gelu"},
        {"ffn_threshold": 0.05, "hidden_act": "relu"},
    ],
)
@pytest.mark.parametrize("ffn_type", ["mlp", "glu", "dglu"])
def test_zeros_that_a_configuration_makes_are_skipped(fields, ffn_type):
    if ffn_type == "dglu" and fields.get("hidden_act") != "relu":
        pytest.skip("the second factor must be relu or nothing")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = ReLUFormerForCausalLM(ReLUFormerDecoderConfig(**sizes, ffn_type=ffn_type, **fields)).eval()
    row = torch.tensor([[7]])
    with torch.no_grad():
        expected = model(row).logits
        use_sparse_ffn(model)
        torch.testing.assert_close(model(row).logits, expected)


def test_an_activation_without_exact_zeros_is_refused_though_it_is_wrapped():
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = ReLUFormerForCausalLM(
        ReLUFormerDecoderConfig(**sizes, hidden_act="sigmoid", activation_sparsity_pattern=0.5)
    )
    with pytest.raises(ValueError, match="gives no exact zeros to skip"):
        use_sparse_ffn(model)
