"""`reluformer analyze`: files, record, pictures without warnings, foreign models, and mistakes in one line."""

import csv
import dataclasses
import json
import shutil
import warnings

import pytest
import yaml
from transformers import GPT2Config, GPT2LMHeadModel

from reluformer.analysis.analyze import AnalysisOptions
from reluformer.analysis.figure import MODEL, NOTHING, TEXT, figure_class
from reluformer.commands import main as cli
from reluformer.configuration.analyses import ANALYSES

from .small_models import LAYERS, SOURCES, TARGETS, save_model

TABLES = [name for name in ANALYSES if name != "attention-maps"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_tokenizer):
    """Models on disk by kind, made when they are asked for."""
    root = tmp_path_factory.mktemp("models")

    def get(kind):
        return root / kind if (root / kind).exists() else save_model(root / kind, kind, small_tokenizer)

    return get


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    root = tmp_path_factory.mktemp("text")
    for name, lines in (("source", SOURCES), ("target", TARGETS)):
        (root / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ["--text", root / "source", "--target-text", root / "target"]


def run(capsys, *arguments):
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # matplotlib's, of a picture that does not fit
        status = cli.main(["analyze", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refusal(capsys, *arguments):
    status, out, err = run(capsys, *arguments)
    last = err.strip().splitlines()[-1]
    assert (status, out) == (2, "")
    assert err.endswith("\n")
    assert last.startswith("reluformer: error: ")
    assert "Traceback" not in err
    return last


def result(folder, what):
    return json.loads((folder / f"{what}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ANALYSES)
def test_every_figure_says_its_name_and_what_it_needs(name):
    figure = figure_class(name)
    assert figure.name == name
    assert figure.needs in (NOTHING, MODEL, TEXT)
    assert {field.name for field in dataclasses.fields(figure)} <= vars(AnalysisOptions(what=[name])).keys()


def test_every_analysis_writes_its_files(capsys, folder, text, tmp_path):
    model = folder("reluformer")
    documents = tmp_path / "documents"
    documents.write_text("a\na\n" + "b\n" * (len(SOURCES) - 2), encoding="utf-8")
    more = [
        "--samples",
        500,
        "--lengths",
        1,
        4,
        "--map_tokens",
        3,
        "--documents",
        documents,
        "--output",
        tmp_path / "out",
    ]
    status, out, _ = run(capsys, "--what", *ANALYSES, "--model", model, *text, *more)
    assert status == 0
    for what in TABLES:
        found = result(tmp_path / "out", what)
        assert {"command", "git_commit", "versions", "machine", "date"} <= set(found)
        assert f"{what}: " in out
        with (tmp_path / "out" / f"{what}.csv").open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == len(found["table"]) > 0
        assert list(rows[0]) == list(found["table"][0])
        assert rows[-1] == {name: "" if v is None else str(v) for name, v in found["table"][-1].items()}
        assert set(rows[0]) - {"module", "layer", "head"} <= set(found["definitions"])
        assert (tmp_path / "out" / f"{what}.png").read_bytes().startswith(b"\x89PNG")
    [maps] = result(tmp_path / "out", "attention-maps")["maps"]
    assert len(maps["pictures"]) == 3 * LAYERS
    assert all((tmp_path / "out" / "attention-maps" / name).is_file() for name in maps["pictures"])


def test_all_figures_of_a_run_are_taken_on_its_test_split(capsys, folder, text, tmp_path):
    run_folder = shutil.copytree(folder("reluformer"), tmp_path / "run")
    files = {"source": str(text[1]), "target": str(text[3])}
    data = {"source_language": "de", "target_language": "en", "train": files, "test": files}
    recipe = {"name": "a", "data": data, "training": {"max_steps": 1}}
    (run_folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert run(capsys, "--what", "all", "--run", run_folder, "--maps", 1, "--map_tokens", 3)[0] == 0
    without = {"context", "random-context", "variance-simulation"}
    assert {path.stem for path in (run_folder / "analysis").glob("*.json")} == ANALYSES.keys() - without
    assert run(capsys, "--what", "entropy", "--model", run_folder, *text, "--output", tmp_path)[0] == 0
    assert result(run_folder / "analysis", "entropy")["table"] == result(tmp_path, "entropy")["table"]
    assert "--text: --run says it already" in refusal(capsys, "--what", "all", "--run", run_folder, *text[:2])
    assert "holds no recipe.yaml" in refusal(capsys, "--what", "all", "--run", tmp_path)


def test_a_result_says_what_was_measured(capsys, folder, text, tmp_path):
    model = folder("reluformer")
    assert run(capsys, "--what", "entropy", "--model", model, *text, "--output", tmp_path)[0] == 0
    found = result(tmp_path, "entropy")
    assert found["model"]["name"] == str(model)
    assert found["model"]["config"]["attention_activation"] == "relu"
    assert found["text"]["source_file"] == str(text[1])
    assert found["text"]["target_file"] == str(text[3])
    assert found["text"]["sentences"] == len(SOURCES)
    assert found["entropy_margin"] == 0.7


def test_without_target_text_the_own_translation_is_used_and_said(capsys, folder, text, tmp_path, translations):
    options = ["--what", "top-p", "--model", folder("reluformer"), *text[:2], "--num_beams", 1, "--output", tmp_path]
    status, _, err = run(capsys, *options)
    assert status == 0
    assert "note: no --target_text: the decoder reads the model's own translation" in err
    assert result(tmp_path, "top-p")["text"]["target"].startswith("the model's own translation")


def test_the_results_go_beside_the_model_by_default(capsys, folder):
    model = folder("vanilla")
    assert run(capsys, "--what", "anisotropy", "--model", model)[0] == 0
    assert result(model / "analysis", "anisotropy")["table"][0]["layer"] == "all"
    assert "text" not in result(model / "analysis", "anisotropy")


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_foreign_models(capsys, folder, text, tmp_path, kind):
    what = ["entropy", "top-p", "anisotropy"]
    assert run(capsys, "--what", *what, "--model", folder(kind), *text, "--output", tmp_path)[0] == 0
    table = result(tmp_path, "entropy")["table"]
    assert {row["module"] for row in table} == {"all", "encoder_self", "decoder_self", "cross"}
    assert max(row["layer"] for row in table if row["layer"] != "all") == LAYERS
    assert all(row["row_sum"] == pytest.approx(1, abs=1e-5) for row in table)
    modules = {row["module"] for row in result(tmp_path, "top-p")["table"]}
    assert modules == {"encoder_self", "decoder_self", "cross", "encoder_ffn", "decoder_ffn"}


def test_only_what_is_drawn_is_translated(capsys, folder, text, tmp_path, translations):
    options = ["--model", folder("marian"), *text[:2], "--maps", 2, "--map_tokens", 2, "--num_beams", 1]
    assert run(capsys, "--what", "attention-maps", *options, "--output", tmp_path)[0] == 0
    found = result(tmp_path, "attention-maps")
    assert translations == SOURCES[:2]
    assert [one["sentence"] for one in found["maps"]] == [1, 2]
    assert len(list((tmp_path / "attention-maps").iterdir())) == 2 * 3 * LAYERS
    with (tmp_path / "attention-maps.csv").open(encoding="utf-8") as stream:
        assert {row["sentence"] for row in csv.DictReader(stream)} == {"1", "2"}


@pytest.mark.parametrize("kind", ["gelu", "bart"])
def test_memories_with_negative_scores_are_left_out_and_said(capsys, folder, text, tmp_path, kind):
    status, _, err = run(capsys, "--what", "top-p", "--model", folder(kind), *text, "--output", tmp_path)
    assert status == 0
    assert "note: top-p leaves out encoder_ffn: negative scores" in err
    found = result(tmp_path, "top-p")
    assert set(found["left_out"]) == {"encoder_ffn", "decoder_ffn"}
    assert {row["module"] for row in found["table"]} == {"encoder_self", "decoder_self", "cross"}


def test_negative_attention_has_maps_alone(capsys, folder, text, tmp_path):
    options = ["--model", folder("identity"), *text, "--output", tmp_path]
    assert "negative weights" in refusal(capsys, "--what", "entropy", *options)
    assert run(capsys, "--what", "attention-maps", *options)[0] == 0


def test_mistakes_are_one_line_and_status_2(capsys, folder, text, tmp_path, small_tokenizer):
    model, out = ["--model", folder("reluformer")], ["--output", tmp_path / "out"]
    assert "--what" in refusal(capsys)
    assert "entropie is unknown; choose of entropy," in refusal(capsys, "--what", "entropie")
    assert "entropy needs a model" in refusal(capsys, "--what", "entropy", *text, *out)
    assert "top-p needs a file of source lines" in refusal(capsys, "--what", "top-p", *model, *out)
    assert "--output: missing" in refusal(capsys, "--what", "variance-simulation")
    ours = ["--what", "entropy", *model, *out]
    assert "nowhere" in refusal(capsys, *ours, "--text", tmp_path / "nowhere")
    (tmp_path / "short").write_text("one\n", encoding="utf-8")
    assert "same number of lines" in refusal(capsys, *ours, *text[:2], "--target_text", tmp_path / "short")
    (tmp_path / "empty").write_text("\n\n", encoding="utf-8")
    assert "empty corpus" in refusal(capsys, *ours, "--text", tmp_path / "empty")
    assert "without --text" in refusal(capsys, "--what", "anisotropy", *model, *out, *text[2:])
    for name in ("batch_tokens", "num_beams", "maps", "map_tokens"):
        assert f"--{name}: 0 must be at least 1" in refusal(capsys, *ours, *text, f"--{name}", 0)
    assert "--top_p: [0.0, 5.0]" in refusal(capsys, *ours, *text, "--top_p", 0, 5)
    assert "no such folder" in refusal(capsys, "--what", "entropy", "--model", tmp_path / "no", *text)
    sizes = {"n_layer": 1, "n_head": 1, "n_embd": 8}
    GPT2LMHeadModel(GPT2Config(vocab_size=len(small_tokenizer), **sizes)).save_pretrained(tmp_path / "gpt")
    small_tokenizer.save_pretrained(tmp_path / "gpt")
    gpt = ["--what", "entropy", "--model", tmp_path / "gpt", *text, *out]
    assert "is a decoder alone, which translates nothing" in refusal(capsys, *gpt)
    t5 = ["--what", "variance-ratio", "--model", folder("t5"), *text, *out]
    assert "t5 models are not supported" in refusal(capsys, *t5)
    assert "'gpu' is no device" in refusal(capsys, *ours, *text, "--device", "gpu")
    assert not (tmp_path / "out").exists()
