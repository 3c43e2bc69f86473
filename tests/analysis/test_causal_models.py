"""`reluformer analyze` of decoder-only models: ours, GPT-2 and Llama; entropy shares and non-zeros by hand."""

import json
import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, set_seed

from benchmarks.studies.texts import train_byte_tokenizer
from reluformer import ReLUFormerDecoderConfig, ReLUFormerForCausalLM
from reluformer.analysis.collection import DECODER_SELF
from reluformer.analysis.entropy import EntropyShares
from reluformer.commands import main as cli

from ..tiny_texts import text

VOCABULARY, WIDTH, LAYERS, HEADS = 300, 16, 2, 4
SHARED = {"vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}


def make(kind):
    set_seed(3)
    ours = {**SHARED, "hidden_size": WIDTH, "max_position_embeddings": 24, "init_std": 0.3}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    if kind == "gpt2":
        sizes = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 24, "vocab_size": VOCABULARY}
        return GPT2LMHeadModel(GPT2Config(**sizes, activation_function="relu", initializer_range=0.3, **tokens))
    if kind == "llama":
        sizes = {**SHARED, "hidden_size": WIDTH, "intermediate_size": 40, "max_position_embeddings": 24}
        return LlamaForCausalLM(LlamaConfig(**sizes, hidden_act="relu", initializer_range=0.3, **tokens))
    preset = {"relu": "llama_relu", "free": "normalization_free"}[kind]
    return ReLUFormerForCausalLM(ReLUFormerDecoderConfig.from_preset(preset, **ours, **tokens))


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_tokenizer(iter([text(1, 40)]), vocab_size=VOCABULARY, max_length=24)


@pytest.fixture
def saved(tmp_path, tokenizer):
    def write(kind):
        folder = tmp_path / kind
        make(kind).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (tmp_path / "text.txt").write_text(text(2, 30), encoding="utf-8")
        return folder

    return write


@pytest.mark.parametrize("kind", ["gpt2", "llama", "relu", "free"])
def test_the_command_reads_any_decoder(kind, saved, tmp_path, capsys):
    folder = saved(kind)
    what = ["--what", "entropy", "entropy-share", "ffn-sparsity", "--context", "10", "--batch_tokens", "40"]
    arguments = ["--model", str(folder), "--text", str(tmp_path / "text.txt")]
    assert cli.main(["analyze", *what, *arguments]) == 0, capsys.readouterr().err
    found = {name: json.loads((folder / "analysis" / f"{name}.json").read_text()) for name in what[1:4]}
    for name in found:
        assert (folder / "analysis" / f"{name}.png").stat().st_size > 10_000
    read = found["entropy"]["text"]
    # every context but the first begins with the last token of the one before
    assert read["contexts"] == math.ceil(read["tokens"] / 9) and read["context"] == 10
    heads = [row for row in found["entropy-share"]["table"] if row["head"] != "all"]
    assert len(heads) == LAYERS * HEADS and all(0 <= row["entropy_share"] <= 1 + 1e-9 for row in heads)
    whole = found["entropy-share"]["table"][0]
    assert sum(whole[f"quarter_{n}"] for n in (1, 2, 3, 4)) == pytest.approx(1) and whole["nan_count"] == 0
    rows = read["tokens"] + read["contexts"]  # tokens that look, the one before the text with them
    assert found["entropy"]["table"][0]["rows"] == rows * LAYERS * HEADS
    assert whole["rows"] == (rows - read["contexts"]) * LAYERS * HEADS  # the first of a context sees itself alone
    layers = [row for row in found["ffn-sparsity"]["table"] if row["layer"] != "all" and row["neurons"] is not None]
    assert len(layers) == LAYERS and all(0 < row["nonzero_fraction"] < 1 for row in layers)
    assert {row["neurons"] for row in layers} == {40 if kind == "llama" else 64}


def test_heads_between_the_quarters_marks():
    # equal weights of 2, 4, 8 and 16 keys of 32: 1, 2, 3 and 4 fifths of the maximum
    weights = torch.stack([(torch.arange(32) < keys).float() for keys in (2, 4, 8, 16)])
    shares = EntropyShares()
    shares.update(DECODER_SELF, 0, weights.unsqueeze(0), torch.ones(1, 32).bool())
    table = {row["head"]: row for row in shares.table() if row["layer"] == 1}
    for head in (1, 2, 3, 4):
        assert table[head]["entropy_share"] == pytest.approx(head / 5) and table[head][f"quarter_{head}"] == 1


def test_entropy_shares_by_hand():
    # row 1 sees one key and does not count; row 2 equal weights; row 3 one key of three; a head that is dead, and one with NaN
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]).bool()
    good = torch.tensor([[2.0, 9, 9], [3, 3, 9], [0, 5, 0]])
    dead, broken = torch.zeros(3, 3), good.clone()
    broken[2, 1] = float("nan")
    shares = EntropyShares()
    for part in (slice(0, 2), slice(2, 3)):  # in two batches
        shares.update(DECODER_SELF, 0, torch.stack([good, dead, broken], dim=1)[part], visible[part])
    table = {row["head"]: row for row in shares.table() if row["layer"] == 1}
    assert table[1]["rows"] == 2 and table[1]["entropy_share"] == pytest.approx(0.5) and table[1]["quarter_3"] == 1
    assert table[2]["entropy_share"] == 0 and table[2]["quarter_1"] == 1
    assert table[3]["rows"] == 1 and table[3]["entropy_share"] == pytest.approx(1) and table[3]["nan_count"] == 1
    assert [table["all"][f"quarter_{n}"] for n in (1, 2, 3, 4)] == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--what", "variance-ratio"], "variance-ratio cannot be taken of"),
        (["--what", "anisotropy"], "choose of entropy, entropy-share, likelihood, ffn-sparsity"),
        (["--what", "entropy", "--target_text", "text.txt"], "--target_text"),
        (["--what", "entropy", "--context", "25"], "--context: 25 tokens; give 2 to 24"),
    ],
)
def test_what_a_decoder_lacks_is_refused_in_one_line(arguments, named, saved, tmp_path, capsys):
    folder = saved("gpt2")
    arguments = [str(tmp_path / each) if each == "text.txt" else each for each in arguments]
    assert cli.main(["analyze", *arguments, "--model", str(folder), "--text", str(tmp_path / "text.txt")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]  # behind the bar of what was loaded
    assert said.startswith("reluformer: error: ") and named in said
