"""`reluformer export`: what it writes, and what it refuses."""

import json

import pytest
import torch
from transformers import AutoConfig, GenerationConfig, MarianConfig, MarianMTModel

from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError

from ..conftest import tiny_model

pytest.importorskip("onnxruntime", reason="needs the extra onnx: pip install 'reluformer[onnx]'")

import onnx

from reluformer.export import exporting
from reluformer.export.exporting import export, prepared, write_checked
from reluformer.export.graphs import GRAPHS
from reluformer.export.running import OnnxTranslationModel


def test_the_folder_has_all_that_a_user_needs(trained, exported):
    assert {path.name for path in exported.iterdir()} == {
        *GRAPHS, *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    }  # fmt: skip
    assert (exported / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
    settings, wanted = (json.loads((folder / "tokenizer_config.json").read_text()) for folder in (exported, trained))
    assert settings.items() >= wanted.items()
    assert GenerationConfig.from_pretrained(exported).max_new_tokens == 12
    config = AutoConfig.from_pretrained(exported)
    assert (config.model_type, config.dtype) == ("reluformer", torch.float32)
    assert not getattr(config, "auto_map", None)


def test_int8_is_smaller_and_close(trained, exported, graphs_at_hand, tmp_path):
    int8 = export(trained, tmp_path / "int8", int8=True)
    for name, size in int8.sizes.items():
        assert size < (exported / name).stat().st_size
    assert int8.difference.allowed < int8.difference.largest < 0.2 * int8.difference.scale
    model = OnnxTranslationModel.from_pretrained(int8.folder)
    assert model.generate(input_ids=torch.tensor([[9, 8, 7, 2]]), num_beams=2).shape[0] == 1
    kinds = {node.op_type for node in onnx.load(int8.folder / GRAPHS[1]).graph.node}
    assert "MatMulInteger" in kinds


def test_the_command(trained, graphs_at_hand, tmp_path, capsys):
    target = tmp_path / "onnx"
    assert cli.main(["export", "--model", str(trained), "--output", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{target / GRAPHS[0]}: ") and lines[0].endswith(" MB")
    assert lines[2].startswith("largest difference from PyTorch: ")
    given = ["translate", "--model", str(trained), "eins", "zwölf"]
    assert cli.main(given) == 0
    wanted = capsys.readouterr().out
    given[2] = str(target)
    assert cli.main(given) == 0
    assert capsys.readouterr().out == wanted
    for option, value in (("--device", "cuda"), ("--attn_implementation", "eager")):
        assert cli.main([*given, option, value]) == 2
        assert f"{option[2:]}: '{value}' was given, but {target} is an exported model" in capsys.readouterr().err


def test_a_folder_in_use(trained, exported, tmp_path):
    with pytest.raises(UserError, match="holds a model already; give another folder, or --overwrite"):
        export(trained, exported)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UserError, match="holds files but no model; give another folder"):
        export(trained, tmp_path, overwrite=True)
    with pytest.raises(UserError, match="holds the source; give another folder"):
        export(trained, trained, overwrite=True)
    for name in GRAPHS:
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"holds notes\.txt, which the program did not write"):
        export(trained, tmp_path, overwrite=True)
    assert (tmp_path / "notes.txt").exists()
    (tmp_path / "a file").touch()
    with pytest.raises(UserError, match="is a file; give a folder"):
        export(trained, tmp_path / "a file")


def test_overwrite_replaces_the_whole_folder(trained, graphs_at_hand, tmp_path):
    for name in (*GRAPHS, f"{GRAPHS[0]}.data"):
        (tmp_path / name).touch()
    export(trained, tmp_path, overwrite=True)
    assert (tmp_path / GRAPHS[0]).stat().st_size > 0
    assert not (tmp_path / f"{GRAPHS[0]}.data").exists()


def test_other_models_are_refused(tmp_path, monkeypatch):
    config = MarianConfig(vocab_size=40, d_model=16, pad_token_id=0, decoder_start_token_id=0)
    loaded = {"marian": MarianMTModel(config), "sparsemax": tiny_model(preset="sparsemax")}
    monkeypatch.setattr(exporting, "load_model_and_tokenizer", lambda name: (loaded[name], None))
    with pytest.raises(
        UserError, match="marian: is a 'marian' model; only ReLUFormers are exported; `reluformer convert`"
    ):
        export("marian", tmp_path / "onnx")
    with pytest.raises(
        UserError, match=r"attention_activation='sparsemax' has no plain ONNX operators; exported are relu,"
    ):
        export("sparsemax", tmp_path / "onnx")
    with pytest.raises(UserError, match="opset: 17 is out of range; give 18 to 23"):
        export("marian", tmp_path / "onnx", opset=17)
    assert not list(tmp_path.iterdir())


def test_graphs_that_differ_are_not_left_behind(trained, exported, graphs_at_hand, tmp_path, monkeypatch):
    def other(name):
        model, tokenizer = load(name)
        model.model.decoder.layers[0].fc2.bias.data[0].add_(0.01)
        return model, tokenizer

    load = exporting.load_model_and_tokenizer
    monkeypatch.setattr(exporting, "load_model_and_tokenizer", other)
    with pytest.raises(UserError, match=r"the exported graphs differ from PyTorch by up to .* Nothing was written"):
        export(trained, tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_half_precision_is_exported_in_float32(tmp_path):
    write_checked(prepared(tiny_model().to(torch.bfloat16)), tmp_path)
