"""Zeros of feed-forward blocks in models of many kinds, by hand and against hooks of the test's own; and PPL-p%."""

import csv
import json
import shutil

import pytest
import torch
from transformers import (
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from benchmarks.studies.pictures import image_processor
from reluformer import (
    ReLUFormerConfig,
    ReLUFormerDecoderConfig,
    ReLUFormerForCausalLM,
    ReLUFormerForConditionalGeneration,
    ReLUFormerForImageClassification,
    ReLUFormerVisionConfig,
)
from reluformer.analysis.analyze import AnalysisOptions, analyze
from reluformer.analysis.collection import DECODER_SELF, ImageBatch, TextBatch, observe
from reluformer.analysis.entropy import RowStatistics
from reluformer.analysis.feed_forward import feed_forward_blocks
from reluformer.analysis.ffn_sparsity import AttentionNonzeros, FFNSparsity
from reluformer.analysis.figure import Subject
from reluformer.analysis.texts import make_batch
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError

from .. import tiny_pictures
from .small_models import FFN, SIZES, TOKENS, make_model

VOCABULARY = 60
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16}
CAUSAL = {"vocab_size": VOCABULARY, "max_position_embeddings": 24, **SHAPE}
PICTURE = {**SHAPE, "intermediate_size": FFN, "image_size": 8, "patch_size": 4, "num_labels": 3}
# Kind → model, and the names of the projections that read the activations.
MODELS = {
    "opt": lambda: (OPTForCausalLM(OPTConfig(**CAUSAL, ffn_dim=FFN, word_embed_proj_dim=16, **IDS)), "fc2"),
    "llama": lambda: (
        LlamaForCausalLM(LlamaConfig(**CAUSAL, intermediate_size=FFN, hidden_act="silu", **IDS)),
        "down_proj",
    ),
    "ours_decoder": lambda: (
        ReLUFormerForCausalLM(ReLUFormerDecoderConfig.from_preset("llama_relu", **CAUSAL, **IDS)),
        "down_proj",
    ),
    "t5": lambda: (make_model("t5", VOCABULARY), "wo"),
    "t5_gated": lambda: (T5ForConditionalGeneration(T5Config(**T5, feed_forward_proj="gated-gelu")), "wo"),
    "marian": lambda: (make_model("marian", VOCABULARY), "fc2"),
    "ours_translation": lambda: (
        ReLUFormerForConditionalGeneration(ReLUFormerConfig(vocab_size=VOCABULARY, **SIZES, **TOKENS)),
        "fc2",
    ),
    "vit": lambda: (ViTForImageClassification(ViTConfig(**PICTURE, hidden_act="relu")), "fc2"),
    "ours_vision": lambda: (
        ReLUFormerForImageClassification(ReLUFormerVisionConfig(**PICTURE, hidden_act="relu")),
        "fc2",
    ),
}
IDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": FFN, "num_layers": 2, "num_heads": 4, **TOKENS}


def make(kind):
    torch.manual_seed(1)
    model, name = MODELS[kind]()
    with torch.no_grad():  # away from the start, where all is about equal
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval(), name


def batch_for(model):
    torch.manual_seed(2)
    if model.main_input_name == "pixel_values":
        tokens = 4 + (model.config.model_type == "vit")
        return ImageBatch(torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 2, 1, 0]), tokens)
    if model.config.is_encoder_decoder:
        pairs = [([5, 6, 7, 8, 9, 2], [9, 8, 2]), ([11, 2], [4, 5, 6, 7, 2]), ([3, 4, 2], [21, 22, 2])]
        return make_batch(pairs, "cpu")
    return TextBatch(torch.randint(2, VOCABULARY, (3, 11)))


def take(figure, model, batch):
    watch = figure.watch(model)
    attention = [] if watch.attention is None else [watch.attention]
    observe(model, [batch], attention=attention, on_scores=watch.on_scores, on_batch=watch.on_batch)
    return figure.take(Subject(model))


@pytest.mark.parametrize("kind", MODELS)
def test_zeros_are_those_of_the_activations(kind):
    model, name = make(kind)
    batch, seen = batch_for(model), []
    for path, module in model.named_modules():
        if path.endswith(f".{name}") and "attn" not in path.lower():
            module.register_forward_pre_hook(lambda _, inputs, path=path: seen.append((path, inputs[0])))
    taken = take(FFNSparsity(), model, batch)
    rows = [row for row in taken.table if row["neurons"] is not None and row["layer"] != "all"]
    assert len(rows) == len(seen) == (4 if model.config.is_encoder_decoder else 2)
    for row, (path, found) in zip(rows, seen, strict=True):
        real = batch.rows[row["module"].removesuffix("_ffn")]
        found = found.flatten(0, -2) if real is None or found.ndim == 2 else found[real]
        nonzero = (found != 0).double()
        assert row["tokens"] == len(found) and row["neurons"] == found.shape[1], path
        assert row["nonzero_fraction"] == pytest.approx(float(nonzero.mean()))
        assert row["dead_fraction"] == pytest.approx(float((nonzero.sum(dim=0) == 0).double().mean()))
        assert row["always_on_fraction"] == pytest.approx(float(nonzero.prod(dim=0).mean()))
    # beside them the zeros of attention, where it has any
    attention = [row for row in taken.table if row["neurons"] is None]
    assert bool(attention) == kind.startswith("ours")
    assert all(0 < row["nonzero_fraction"] < 1 for row in attention)


def test_zeros_of_attention_are_those_of_entropy():
    torch.manual_seed(0)
    rows, nonzeros = RowStatistics(0.7), AttentionNonzeros()
    for queries in (4, 7):
        weights, visible = torch.randn(queries, 3, 9).relu(), torch.rand(queries, 9) > 0.3
        for statistic in (rows, nonzeros):
            statistic.update(DECODER_SELF, 1, weights, visible)
    layer = next(row for row in rows.table() if row["layer"] == 2 and row["head"] == "all")
    found = nonzeros.table()
    assert [row["layer"] for row in found] == ["all", 2] and found[1]["tokens"] == 11
    assert found[1]["nonzero_fraction"] == pytest.approx(1 - layer["zero_fraction"])


@pytest.fixture
def classifier(tmp_path):
    """A classifier on disk, and its pictures as folders and IDX files."""
    config = ReLUFormerVisionConfig(**PICTURE, hidden_act="relu", label2id={"dark": 0, "left": 1, "right": 2},
                                    id2label={0: "dark", 1: "left", 2: "right"})  # fmt: skip
    torch.manual_seed(4)
    ReLUFormerForImageClassification(config).save_pretrained(tmp_path / "model")
    image_processor(config).save_pretrained(tmp_path / "model")
    tiny_pictures.write_folders(tmp_path / "test")
    return tmp_path, tiny_pictures.write_idx(tmp_path)


def test_the_command_reads_a_classifier_of_pictures(classifier, capsys):
    folder, idx = classifier
    command = ["analyze", "--what", "ffn-sparsity", "ppl-sparsity", "--model", str(folder / "model")]
    tables = []
    for source in (["--images", str(folder / "test")], ["--images", idx["images"], "--image_labels", idx["labels"]]):
        assert cli.main([*command, *source, "--ppl_increase", "1", "10"]) == 0, capsys.readouterr().err
        found = json.loads((folder / "model" / "analysis" / "ffn-sparsity.json").read_text())
        assert found["pictures"]["pictures"] == 13
        tables.append({row["module"]: row["nonzero_fraction"] for row in found["table"] if row["layer"] == "all"})
    assert tables[0] == pytest.approx(tables[1]) and set(tables[0]) == {"encoder_ffn", "encoder_self"}
    for name in ("ffn-sparsity", "ppl-sparsity"):
        assert (folder / "model" / "analysis" / f"{name}.png").stat().st_size > 10_000
    rows = list(csv.DictReader((folder / "model" / "analysis" / "ppl-sparsity.csv").open()))
    assert {row["p_percent"] for row in rows} == {"1.0", "10.0"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--what", "entropy", "--images", "test"], "--what: entropy cannot be taken of"),
        (["--what", "ffn-sparsity", "--text", "train"], "model is a classifier of pictures; give --images"),
        (["--what", "ffn-sparsity", "--images", "other"], "--images: the class 'dusk' is none"),
        (["--what", "ffn-sparsity", "--image_labels", "test-labels"], "--text: missing"),
        (["--what", "ppl-sparsity", "--images", "test", "--ppl_increase", "0"], "--ppl_increase: [0.0] must be"),
        (["--what", "ppl-sparsity", "--images", "test", "--sparsity_tokens", "0"], "--sparsity_tokens: 0 must be"),
    ],
)
def test_mistakes_about_pictures_are_one_line(arguments, named, classifier, capsys, monkeypatch):
    folder, _ = classifier
    shutil.copytree(folder / "test", folder / "other")
    (folder / "other" / "dark").rename(folder / "other" / "dusk")
    monkeypatch.chdir(folder)
    status = cli.main(["analyze", *arguments, "--model", "model"])
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert status == 2 and said.startswith("reluformer: error: ") and named in said


def test_models_without_such_blocks_are_told_what_they_have(tmp_path):
    model = MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=VOCABULARY))
    with pytest.raises(
        UserError, match=r"mamba: no feed-forward blocks in its decoder; .* found MambaMixer with in_proj 16→64"
    ):
        feed_forward_blocks(model)
    with pytest.raises(UserError, match=r"--images: .* is a decoder alone"):
        GPT2Config(
            n_embd=16, n_layer=1, n_head=2, vocab_size=VOCABULARY, architectures=["GPT2LMHeadModel"]
        ).save_pretrained(tmp_path)
        analyze(AnalysisOptions(what=["ffn-sparsity"], model=str(tmp_path), images="pictures"))
