"""`use_sparse_ffn`: what decodes is what the dense model decodes, nothing is saved, and what cannot be exact is
refused."""

import copy
import pickle
import re

import pytest
import torch
import transformers
from torch import nn

from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM, ReLUFormerForImageClassification, use_sparse_ffn
from reluformer.modeling_reluformer.compiled.library import library
from reluformer.modeling_reluformer.layers_reluformer import SparseActivation
from reluformer.modeling_reluformer.sparse_ffn import forward
from reluformer.modeling_reluformer.sparse_ffn.forward import _gives_exact_zeros, sparse_blocks

from ...conftest import TINY, random_tokens, tiny_model
from ..cases import decoder_model, python_loop, vision_config
from ..other_models.foreign_cases import STABLE, llama_config, marian_config

KINDS = (forward.SparseFeedForward, forward.SparseProjection)


def opt_model(**fields) -> transformers.OPTForCausalLM:
    sizes = {"hidden_size": 16, "ffn_dim": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "init_std": 0.3}
    config = transformers.OPTConfig(**{**sizes, "vocab_size": 40, "word_embed_proj_dim": 16, **SPECIAL, **fields})
    return transformers.OPTForCausalLM(config)


def t5_model(**fields) -> transformers.T5ForConditionalGeneration:
    sizes = {"d_model": 16, "d_ff": 40, "d_kv": 4, "num_layers": 2, "num_heads": 4, "initializer_factor": 2.0}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    config = transformers.T5Config(**{**sizes, "vocab_size": 40, **special, **fields})
    return transformers.T5ForConditionalGeneration(config)


SPECIAL = {name: STABLE[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
MODELS = {
    "opt": opt_model,
    "t5": lambda: t5_model(feed_forward_proj="relu"),
    "t5-gated": lambda: t5_model(feed_forward_proj="gated-relu"),
    "llama": lambda: transformers.LlamaForCausalLM(
        llama_config(hidden_act="relu", intermediate_size=40, mlp_bias=True)
    ),
    "llama-relu2": lambda: transformers.LlamaForCausalLM(llama_config(hidden_act="relu2")),
    "marian": lambda: transformers.MarianMTModel(marian_config(activation_function="relu")),
    "translation": lambda: tiny_model(decoder_ffn_dim=TINY["decoder_ffn_dim"] + 9),
    "decoder": lambda: decoder_model(hidden_act="relu"),
    "decoder-glu": lambda: decoder_model(preset="llama_relu"),
    "decoder-dglu": lambda: decoder_model(preset="llama_relu", ffn_type="dglu", ffn_bias=True),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """One of `MODELS` with new weights, in evaluation mode; it decodes to the last token that is asked for."""
    torch.manual_seed(seed)
    model = MODELS[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def decoded(model: nn.Module, rows: int = 1, **options) -> torch.Tensor:
    """Greedy tokens (rows, length) behind a prompt, or for a source, of 12 tokens."""
    return model.generate(random_tokens(rows, 12, seed=1), max_new_tokens=8, do_sample=False, **options)


@pytest.fixture(autouse=True)
def needs_the_library():
    if library(large=True) is None:
        pytest.skip("the compiled library cannot be built here")


@pytest.fixture
def calls(monkeypatch):
    """The rows of every call that was computed sparsely."""
    seen = []
    for kind in KINDS:
        compute = kind.compute
        monkeypatch.setattr(kind, "compute", lambda *call, compute=compute: seen.append(len(call[2])) or compute(*call))
    return seen


def replaced(model) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(vars(part).get("forward"), KINDS)]


def logits(model, *shape: int) -> torch.Tensor:
    ids = random_tokens(*(shape or (2, 4)))
    arguments = {"input_ids": ids, **({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})}
    torch.manual_seed(1)
    with torch.no_grad():
        return model(**arguments).logits


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_the_dense_model(name, calls):
    model = build(name)
    expected = decoded(model), decoded(model, rows=3)
    assert use_sparse_ffn(model) is model
    calls.clear()
    assert all(map(torch.equal, (decoded(model), decoded(model, rows=3)), expected))
    assert not model.config.is_encoder_decoder or not replaced(model.get_encoder())
    assert set(calls) == {1, 3}, "prompts of 12 tokens stay dense, and each step does not"


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_few_rows_are_those_of_the_dense_model_in_every_dtype(name):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        model = build(name).to(dtype)
        with torch.no_grad():
            for part in model.parameters():  # biases too, and numbers that float32 does not hold
                part.add_(0.01 * torch.randn_like(part))
        expected = logits(model)
        assert (logits(use_sparse_ffn(model)) - expected).norm() < tolerance * expected.norm()


def test_int8_is_close_and_is_undone(calls):
    for name in ("opt", "llama", "decoder-dglu"):
        model = build(name)
        expected = logits(model)
        found = logits(use_sparse_ffn(model, int8=True))
        assert 0 < (found - expected).norm() < 0.1 * expected.norm()
        calls.clear()
        assert torch.equal(logits(use_sparse_ffn(model, False)), expected) and not calls and not replaced(model)


def test_nothing_of_it_is_saved(tmp_path):
    model = build("decoder-glu")
    model.save_pretrained(tmp_path / "before")
    use_sparse_ffn(model).save_pretrained(tmp_path / "after")
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in sorted(tmp_path.iterdir())]
    assert files[0] == files[1] and len(files[0]) > 2
    assert not replaced(type(model).from_pretrained(tmp_path / "after"))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_skips_zeros_of_its_own_weights(how, calls):
    model = use_sparse_ffn(build("decoder-dglu"))
    other = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    expected = decoded(model)
    calls.clear()
    with torch.no_grad():
        for part in model.parameters():  # the first one's weights are not the copy's
            part.zero_()
    assert torch.equal(decoded(other), expected) and calls
    assert {part.forward.module for part in replaced(other)} <= set(other.modules())


@pytest.mark.parametrize("name", ["opt", "llama"])
@pytest.mark.parametrize("change", ["optimizer", "fused optimizer", "load_state_dict", "assign", "dtype"])
def test_weights_that_change_are_followed(name, change, calls):
    model, other = use_sparse_ffn(build(name)), build(name, seed=5)
    logits(model)
    if "optimizer" in change:  # a fused one does not count its changes of a weight
        ids = random_tokens(1, 4)
        model(ids).logits.sum().backward()
        torch.optim.AdamW(model.parameters(), lr=0.5, fused=change == "fused optimizer").step()
        other = use_sparse_ffn(copy.deepcopy(model), False)
    elif change == "dtype":
        model, other = model.bfloat16().float(), build(name).bfloat16().float()
    else:
        model.load_state_dict(other.state_dict(), assign=change == "assign")
    calls.clear()
    torch.testing.assert_close(logits(model, 1, 4), logits(other, 1, 4), rtol=1e-4, atol=1e-4)
    assert calls


@pytest.mark.parametrize("name", ["opt", "decoder-glu"])
def test_training_gradients_autocast_and_hooks_are_dense(name, calls):
    model, ids = use_sparse_ffn(build(name)), random_tokens(1, 3)
    calls.clear()
    model(ids).logits.sum().backward()
    assert all(part.grad is not None for part in replaced(model)[0].parameters())
    with torch.no_grad():
        model.train()(ids)
        with torch.autocast("cpu", torch.bfloat16):
            model.eval()(ids)
        model(random_tokens(1, 9))  # more than 8 rows
        assert not calls
        model(ids)
        assert set(calls) == {3}
        seen = []
        for block in sparse_blocks(model):
            block.projections[block.second].register_forward_pre_hook(lambda module, inputs: seen.append(1))
        model(ids)
    assert len(seen) == 2


def test_a_call_under_torch_compile_is_dense(calls):
    mlp = use_sparse_ffn(build("decoder-glu")).model.layers[0].mlp
    rows = torch.randn(1, 2, mlp.gate_proj.in_features)
    calls.clear()
    with torch.no_grad():
        found = torch.compile(mlp, backend="eager", fullgraph=True)(rows)
        assert torch.equal(found, type(mlp).forward(mlp, rows)) and not calls


def test_rows_of_another_dtype_than_the_weights_are_refused_as_by_the_dense_model():
    mlp = use_sparse_ffn(build("decoder-glu").bfloat16()).model.layers[0].mlp
    with torch.no_grad(), pytest.raises(RuntimeError, match="same dtype"):
        mlp(torch.randn(1, 2, mlp.gate_proj.in_features))


@pytest.mark.parametrize("name", ["up_proj", "act_fn", "up_fn"])
def test_a_part_that_is_replaced_afterwards_is_computed(name):
    model = use_sparse_ffn(build("decoder-dglu"))
    mlp = model.model.layers[0].mlp
    other = nn.Linear(mlp.up_proj.in_features, mlp.up_proj.out_features) if name == "up_proj" else nn.SiLU()
    setattr(mlp, name, other)
    found = logits(model)
    torch.testing.assert_close(found, logits(use_sparse_ffn(copy.deepcopy(model), False)))


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
    return transformers.LlamaForCausalLM(llama_config(**{"hidden_act": "relu", "intermediate_size": 16, **fields}))


def changed(place: str, part: nn.Module):
    model = llama()
    layer = model.model.layers[1]
    setattr(layer if place == "mlp" else layer.mlp, place, part)
    return model


GPT2 = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 9, "activation_function": "relu"}
WRAPPED = {"hidden_act": "sigmoid", "activation_sparsity_pattern": 0.5}


def times(factor: float, part: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.mul_(factor)
    return part


REFUSED = [
    (lambda: llama(hidden_act="silu"), "model.layers.0.mlp (LlamaMLP) computes SiLU…exact zeros…relu, relu2, relu6"),
    (lambda: opt_model(activation_function="gelu"), "layers.0 (OPTDecoderLayer) computes GELUActivation"),
    (lambda: t5_model(feed_forward_proj="gated-gelu"), "computes NewGELUActivation, which gives no exact zeros"),
    (lambda: decoder_model(**WRAPPED), "gives no exact zeros to skip"),
    (lambda: changed("up_fn", nn.SiLU()), "layers.1.mlp (LlamaMLP) computes SiLU"),
    (
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
        "GPT2LMHeadModel has no feed-forward network that decodes, with projections called",
    ),
    (
        lambda: ReLUFormerForImageClassification(vision_config(hidden_act="relu")),
        "has no feed-forward network that decodes",
    ),
    (lambda: changed("up_proj", nn.Sequential(nn.Linear(16, 16))), "up_proj is a Sequential on cpu"),
    (lambda: llama().to("meta"), "gate_proj is a Linear on meta; use_sparse_ffn needs nn.Linear on a CPU"),
    (lambda: changed("mlp", ScaledMLP()), "(ScaledMLP) does not compute down_proj(act_fn(gate_proj(x)) * up_proj(x))"),
    (lambda: changed("mlp", times(0.05, ScaledMLP())), "(ScaledMLP) does not compute down_proj"),
    (lambda: changed("mlp", NormedMLP()), "(NormedMLP) holds norm beside its projections"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=range(len(REFUSED)))
def test_what_has_no_exact_zeros_is_refused_and_left_as_it_was(make, says):
    model = make()
    with pytest.raises(ValueError, match=".*".join(map(re.escape, says.split("…")))):
        use_sparse_ffn(model)
    assert not replaced(model)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="takes a Transformers model"):
        use_sparse_ffn(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"needs a model in float32 or bfloat16, it is torch\.float64"):
        use_sparse_ffn(build("opt").double())
    model = use_sparse_ffn(build("opt"))
    expected = logits(model)
    with python_loop():
        torch.testing.assert_close(logits(model), expected)  # by the model's own forward
        with pytest.raises(ValueError, match="and the compiled library"):
            use_sparse_ffn(model)


@pytest.mark.parametrize(
    "fields",
    [
        {"ffn_threshold": 0.05, "hidden_act": "silu"},
        {"ffn_top_k": 5},
        {"activation_sparsity_pattern": 0.9, "hidden_act": "gelu"},
        {"ffn_threshold": 0.05, "hidden_act": "relu", "ffn_type": "dglu"},
    ],
)
def test_zeros_that_a_configuration_makes_are_skipped(fields, calls):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = ReLUFormerForCausalLM(ReLUFormerDecoderConfig(**{"ffn_type": "glu", **sizes, **fields})).eval()
    expected = logits(model, 1, 1)
    torch.testing.assert_close(logits(use_sparse_ffn(model), 1, 1), expected)
    assert calls


def test_zeros_by_chance_are_not_exact():
    """GELU is 0 at 0: only scores that were cut to 0 before are so by design."""
    scores_cut, none_cut = SparseActivation(nn.GELU(), sparsity=0.5), SparseActivation(nn.GELU())
    assert _gives_exact_zeros(scores_cut) and not _gives_exact_zeros(none_cut)
    assert _gives_exact_zeros(SparseActivation(nn.SiLU(), threshold=0.1))
    assert not _gives_exact_zeros(SparseActivation(nn.Softplus(), sparsity=0.5))
