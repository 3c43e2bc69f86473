"""`reluformer convert` takes GPT-2 and Llama checkpoints over: exactly, with their tokenizer; and exchanges the
attention."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from reluformer import ReLUFormerForCausalLM
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.training.conversion import FOREIGN_MODELS, convert, gpt2_config, llama_config

from ..modeling_reluformer.cases import VOCABULARY, gpt2_model, llama_model, token_ids
from .tiny_marian import without

MODELS = {
    "gpt2": gpt2_model,
    "gpt2-untied": lambda: gpt2_model(tie_word_embeddings=False, pad_token_id=None),
    "llama": llama_model,
    "llama-tied": lambda: llama_model(tie_word_embeddings=True, num_key_value_heads=4),
}


@pytest.fixture(params=MODELS)
def foreign(request, tmp_path):
    """A GPT-2 or Llama in the folder `foreign`, with its tokenizer and settings of generation."""
    model = MODELS[request.param]()
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "foreign")
    letters = pre_tokenizers.ByteLevel.alphabet()[:VOCABULARY]
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(sorted(letters))}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    template = "{{ messages[0].content }}"
    PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template).save_pretrained(tmp_path / "foreign")
    return model


def test_the_converted_model_computes_the_same(foreign, tmp_path, capsys):
    assert cli.main(["convert", "--from", str(tmp_path / "foreign"), "--to", str(tmp_path / "ours")]) == 0
    said = capsys.readouterr()
    assert said.out.endswith("parameters, softmax attention\n") and "note" not in said.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert isinstance(model, ReLUFormerForCausalLM)
    ids = token_ids()
    torch.testing.assert_close(model(ids, labels=ids).logits, foreign(ids).logits, atol=1e-5, rtol=0)
    ours, theirs = (each.generate(ids, do_sample=False) for each in (model, foreign))
    assert torch.equal(ours, theirs) and ours.shape == (3, 16)
    tokenizers = [AutoTokenizer.from_pretrained(tmp_path / folder) for folder in ("ours", "foreign")]
    assert tokenizers[0]("(0)").input_ids == tokenizers[1]("(0)").input_ids
    settings = [json.loads((tmp_path / each / "tokenizer_config.json").read_text()) for each in ("ours", "foreign")]
    assert settings[0] == settings[1], "its class, too, where it has one of its own"
    assert tokenizers[0].apply_chat_template([{"role": "user", "content": "(0)"}], tokenize=False) == "(0)"
    # every weight is there, and none was changed
    saved = load_file(tmp_path / "ours" / "model.safetensors")
    for name, tensor in FOREIGN_MODELS[foreign.config.model_type].weights(foreign.state_dict()).items():
        if name != "lm_head.weight" or not model.config.tie_word_embeddings:
            torch.testing.assert_close(saved.pop(name), tensor, rtol=0, atol=0)
    assert saved == {}


@pytest.mark.parametrize("attention", ["relu", "llama_relu"])
def test_another_attention_keeps_the_weights(foreign, attention, tmp_path):
    convert(tmp_path / "foreign", tmp_path / "softmax")
    for source in ("foreign", "softmax"):
        converted, notes = convert(tmp_path / source, tmp_path / f"relu-{source}", attention=attention)
        config = converted.config
        assert notes == []
        found = (config.attention_activation, config.attention_scaling, config.regularization_weight)
        assert found == ("relu", "variance", 0.01)
        is_llama = foreign.config.model_type == "llama"
        assert (config.norm_type, config.ffn_type) == (("rms_norm", "glu") if is_llama else ("layer_norm", "mlp"))
        model = AutoModelForCausalLM.from_pretrained(tmp_path / f"relu-{source}")
        assert model.config._attn_implementation == "fused" and model(token_ids()).logits.isfinite().all()
    back, _ = convert(tmp_path / "relu-softmax", tmp_path / "back", attention="gpt2")
    torch.testing.assert_close(back(token_ids()).logits, foreign(token_ids()).logits, atol=1e-5, rtol=0)


def test_every_field_arrives():
    gpt2 = GPT2Config(resid_pdrop=0.2, embd_pdrop=0.3, attn_pdrop=0.4, layer_norm_epsilon=1e-3, initializer_range=0.1)
    config = gpt2_config(gpt2)
    found = (config.dropout, config.embedding_dropout, config.attention_dropout, config.norm_eps, config.init_std)
    assert found == (0.2, 0.3, 0.4, 1e-3, 0.1)
    assert (config.intermediate_size, config.max_position_embeddings, config.hidden_act) == (3072, 1024, "gelu_new")
    assert (config.eos_token_id, config.pad_token_id, config.attention_activation) == (50256, None, "softmax")
    assert gpt2_config(GPT2Config(activation_function="relu")).hidden_act == "relu"
    assert llama_config(LlamaConfig(attention_dropout=0.3)).attention_dropout == 0.3
    rotary = {"rope_type": "default", "rope_theta": 5e5}
    config = llama_config(LlamaConfig(rope_parameters=rotary, rms_norm_eps=1e-3, mlp_bias=True, head_dim=64))
    assert config.rope_parameters == rotary and config.head_dim == 64
    assert (config.norm_eps, config.ffn_bias, config.value_bias, config.num_key_value_heads) == (1e-3, True, False, 32)
    config = llama_config(LlamaConfig(attention_bias=True))
    assert config.query_key_bias and config.value_bias and config.output_bias and not config.ffn_bias


def test_an_old_checkpoint_of_the_model_without_head(tmp_path):
    """As the Hub's first GPT-2: names without `transformer.`, and the causal masks among the weights."""
    foreign = gpt2_model()
    foreign.save_pretrained(tmp_path / "old")
    weights = {name: tensor.contiguous() for name, tensor in foreign.transformer.state_dict().items()}
    weights |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 40, 40).tril() for layer in range(2)}
    save_file(weights, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    assert isinstance(GPT2Model.from_pretrained(tmp_path / "old"), GPT2Model)
    found, notes = convert(tmp_path / "old", tmp_path / "ours")
    torch.testing.assert_close(found(token_ids()).logits, foreign(token_ids()).logits, atol=1e-5, rtol=0)
    assert "no tokenizer" in notes[0]


def test_the_tokenizer_of_a_gpt2_that_does_not_name_its_class_keeps_its_special_tokens(tmp_path):
    gpt2_model().save_pretrained(tmp_path / "gpt2")
    Tokenizer(models.BPE({"(": 0, ")": 1}, [])).save(str(tmp_path / "gpt2" / "tokenizer.json"))
    (tmp_path / "gpt2" / "tokenizer_config.json").write_text('{"model_max_length": 40}')
    convert(tmp_path / "gpt2", tmp_path / "ours")
    ours, theirs = (AutoTokenizer.from_pretrained(tmp_path / folder) for folder in ("ours", "gpt2"))
    assert ours.eos_token == theirs.eos_token == "<|endoftext|>" and ours.model_max_length == 40
    # of an older checkpoint
    (tmp_path / "gpt2" / "tokenizer.json").unlink()
    (tmp_path / "gpt2" / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "gpt2" / "merges.txt").write_text("#version: 0.2\na b\n")
    assert convert(tmp_path / "gpt2", tmp_path / "older")[1] == []
    assert AutoTokenizer.from_pretrained(tmp_path / "older")("ab")["input_ids"] == [2]


@pytest.mark.parametrize(
    ("make", "fields", "named"),
    [
        (gpt2_model, {"scale_attn_by_inverse_layer_idx": True}, "has no scale_attn_by_inverse_layer_idx=True"),
        (gpt2_model, {"scale_attn_weights": False}, "has no scale_attn_weights=False"),
        (gpt2_model, {"activation_function": "gelu_newer"}, "gelu_newer"),
        (llama_model, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary"),
        (llama_model, {"sliding_window": 4}, "has no sliding_window=4"),
    ],
)
def test_what_cannot_be_represented_is_refused(make, fields, named, tmp_path):
    make().save_pretrained(tmp_path / "foreign")
    path = tmp_path / "foreign" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(UserError, match=named):
        convert(tmp_path / "foreign", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_a_gated_ffn_without_its_gate_is_refused(tmp_path):
    """`gate_proj` of attention may be new, that of the FFN may not."""
    llama_model().save_pretrained(tmp_path / "llama")
    convert(tmp_path / "llama", tmp_path / "ours")
    without(tmp_path / "ours", "model.layers.0.mlp.gate_proj.weight")
    with pytest.raises(UserError, match=r"1 tensors are missing.*: model\.layers\.0\.mlp\.gate_proj\.weight"):
        convert(tmp_path / "ours", tmp_path / "relu", attention="relu")
