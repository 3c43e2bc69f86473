"""`reluformer analyze`: its files, what it takes of which model and input, and mistakes in one line."""

import csv
import json
import re
import shutil
import warnings

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.studies.pictures import image_processor
from reluformer import ReLUFormerForImageClassification, ReLUFormerVisionConfig
from reluformer.analysis import inputs
from reluformer.analysis.analyses import ANALYSES, INPUT, MODEL, NEEDS, TEXT
from reluformer.analysis.inputs import pair_batches
from reluformer.commands import main as cli
from reluformer.translating.translation import Translator

from ..tiny_texts import text as tiny_text
from .small_models import FFN, LAYERS, SOURCES, TARGETS, make_model, save_decoder, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_tokenizer):
    """Models on disk by kind, made when they are asked for."""
    root = tmp_path_factory.mktemp("models")

    def get(kind):
        if not (root / kind).exists():
            save = save_decoder if kind in ("gpt2", "relu_decoder") else save_model
            save(root / kind, kind, small_tokenizer)
        return root / kind

    return get


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A classifier on disk, beside it two pictures in folders."""
    root = tmp_path_factory.mktemp("pictures")
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 16, "intermediate_size": FFN}
    config = ReLUFormerVisionConfig(**shape, image_size=8, patch_size=4, num_channels=1)
    ReLUFormerForImageClassification(config).save_pretrained(root / "model")
    image_processor(config).save_pretrained(root / "model")
    for number, name in enumerate(("one/a.png", "two/A.PNG")):
        pixels = np.random.default_rng(number).integers(0, 255, (12, 10), dtype=np.uint8)
        (root / "test" / name).parent.mkdir(parents=True)
        Image.fromarray(pixels).save(root / "test" / name)
    return root


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files of lines, by option."""
    root = tmp_path_factory.mktemp("text")
    lines = {"source": SOURCES, "target": TARGETS, "documents": list("aabbb")}
    for name, some in lines.items():
        (root / name).write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
    (root / "text").write_text(tiny_text(2, 30), encoding="utf-8")
    return root


@pytest.fixture
def pairs(files):
    return ["--text", files / "source", "--target-text", files / "target"]


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are empty files: one test looks at all of them."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: path.touch())


def run(capsys, *arguments):
    capsys.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # matplotlib's, of a picture that does not fit
        status = cli.main(["analyze", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def result(folder, what):
    return json.loads((folder / f"{what}.json").read_text(encoding="utf-8"))


def taken_with(last):
    """The analyses that need no more than this one of `NEEDS`."""
    return {name for name, (_, needs) in ANALYSES.items() if NEEDS.index(needs) <= NEEDS.index(last)}


def test_every_analysis_writes_its_files(capsys, folder, files, pairs, tmp_path):
    model = folder("reluformer")
    more = ["--documents", files / "documents", "--output", tmp_path]
    status, out, err = run(capsys, "--what", *ANALYSES, "--model", model, *pairs, *more)
    assert status == 0, err
    for what in ANALYSES:
        found = result(tmp_path, what)
        assert {"command", "git_commit", "versions", "machine", "date"} <= set(found)
        assert f"{what}: " in out
        with (tmp_path / f"{what}.csv").open(encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        assert found["model"]["name"] == str(model) and found["model"]["config"]["attention_activation"] == "relu"
        read = found["text"]
        assert read["source_file"] == str(pairs[1]) and read["sentences"] == len(SOURCES)
        assert read["packed_documents"] == 2 and read["target"] == "given, teacher-forced"
        assert len(rows) == len(found["table"]) > 0
        assert rows[-1] == {name: "" if v is None else str(v) for name, v in found["table"][-1].items()}
        assert what == "attention-maps" or (tmp_path / f"{what}.png").stat().st_size > 10_000
    maps = [row["picture"] for row in result(tmp_path, "attention-maps")["table"]]
    assert sorted(path.name for path in (tmp_path / "attention-maps").iterdir()) == sorted(maps)
    assert len(maps) == 3 * LAYERS


def test_all_of_a_run_are_taken_on_its_test_split(undrawn, capsys, folder, pairs, tmp_path):
    run_folder = shutil.copytree(folder("gelu"), tmp_path / "run")
    sides = {"source": str(pairs[1]), "target": str(pairs[3])}
    data = {"source_language": "de", "target_language": "en", "train": sides, "test": sides}
    recipe = {"name": "a", "data": data, "training": {"max_steps": 1}}
    (run_folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    status, _, err = run(capsys, "--what", "all", "--model", run_folder)
    without = {"context", "random-context"}
    assert status == 0
    assert {path.stem for path in (run_folder / "analysis").glob("*.json")} == ANALYSES.keys() - without
    assert "note: top-p leaves out encoder_ffn: negative scores" in err
    found = result(run_folder / "analysis", "top-p")
    assert len(found["notes"]) == 2
    assert {row["module"] for row in found["table"]} == {"encoder_self", "decoder_self", "cross"}
    assert run(capsys, "--what", "entropy", "--model", run_folder, *pairs, "--output", tmp_path)[0] == 0
    assert result(run_folder / "analysis", "entropy")["table"] == result(tmp_path, "entropy")["table"]


def test_a_run_without_its_corpus_has_the_analyses_of_the_model_alone(undrawn, capsys, folder, tmp_path):
    run_folder = shutil.copytree(folder("gelu"), tmp_path / "run")
    sides = {"source": "gone.de", "target": "gone.en"}
    data = {"source_language": "de", "target_language": "en", "train": sides, "test": sides}
    recipe = {"name": "a", "data": data, "training": {"max_steps": 1}}
    (run_folder / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    assert run(capsys, "--what", "anisotropy", "--model", run_folder)[0] == 0
    status, _, err = run(capsys, "--what", "all", "--model", run_folder)
    assert status == 0 and {path.stem for path in (run_folder / "analysis").glob("*.json")} == taken_with(MODEL)
    assert "the run's own test split is left out: gone.de: no such file" in err
    assert "note: entropy is left out: it needs a text" in err
    status, _, err = run(capsys, "--what", "entropy", "--model", run_folder)
    assert status == 2 and "gone.de: no such file" in err


def test_of_all_what_cannot_be_taken_is_left_out_and_said(undrawn, capsys, folder, pairs, tmp_path):
    """Of T5, whose residual is not known; attention maps alone show negative weights."""
    status, _, err = run(capsys, "--what", "all", "--model", folder("t5"), *pairs, "--output", tmp_path / "t5")
    assert status == 0 and "note: variance-ratio is left out: variance-ratio: t5 models are not supported" in err
    table = result(tmp_path / "t5", "entropy")["table"]
    assert {row["module"] for row in table} == {"all", "encoder_self", "decoder_self", "cross"}
    assert all(row["row_sum"] == pytest.approx(1, abs=1e-5) for row in table)
    status, _, err = run(capsys, "--what", "all", "--model", folder("identity"), *pairs, "--output", tmp_path)
    assert status == 0 and "entropy is left out: entropy: encoder_self attention, layer 1 has negative weights" in err
    assert (tmp_path / "attention-maps.json").is_file()


def test_without_a_target_the_models_translation_is_read(undrawn, capsys, folder, files, tmp_path, monkeypatch):
    asked = []

    def translate(self, texts, progress=False):
        asked.extend(texts)
        assert self.options.split == "none"
        return [dict(zip(SOURCES, TARGETS, strict=True))[text] for text in texts]

    monkeypatch.setattr(Translator, "__call__", translate)
    options = ["--model", folder("marian"), "--text", files / "source", "--output", tmp_path]
    status, _, err = run(capsys, "--what", "attention-maps", "likelihood", *options)
    assert status == 0 and "note: no --target_text: the decoder reads the model's own translation" in err
    assert asked == SOURCES and result(tmp_path, "likelihood")["text"]["target"].startswith("the model's own")


@pytest.mark.parametrize("kind", ["gpt2", "relu_decoder"])
def test_all_of_a_decoder_alone(undrawn, kind, capsys, folder, files, tmp_path):
    options = ["--model", folder(kind), "--text", files / "text", "--context", 10, "--output", tmp_path]
    status, _, err = run(capsys, "--what", "all", *options)
    assert status == 0, err
    assert (
        {path.stem for path in tmp_path.glob("*.json")}
        == {path.stem for path in tmp_path.glob("*.png")}
        == taken_with(TEXT)
    )
    read = result(tmp_path, "entropy")["text"]
    # every context but the first begins with the last token of the one before
    assert read["contexts"] == -(-read["tokens"] // 9) and read["context"] == 10
    rows, heads = read["tokens"] + read["contexts"], 2 * 4
    assert result(tmp_path, "entropy")["table"][0]["rows"] == rows * heads
    # the first of a context sees itself alone
    assert result(tmp_path, "entropy-share")["table"][0]["rows"] == (rows - read["contexts"]) * heads
    assert result(tmp_path, "likelihood")["table"][0]["tokens"] == read["tokens"]


def test_all_of_a_classifier_of_pictures(undrawn, classifier, capsys, tmp_path):
    options = ["--model", classifier / "model", "--images", classifier / "test", "--output", tmp_path]
    status, _, err = run(capsys, "--what", "all", *options)
    assert status == 0, err
    assert {path.stem for path in tmp_path.glob("*.json")} == taken_with(INPUT)
    found = result(tmp_path, "ffn-sparsity")
    assert found["pictures"]["pictures"] == 2 and found["table"][0]["tokens"] == 2 * 4
    assert 0 < result(tmp_path, "entropy")["table"][0]["zero_fraction"] < 1
    pictures = shutil.copytree(classifier / "test", tmp_path / "pictures")
    (pictures / "notes.pdf").write_text("no picture")
    options[3] = pictures
    assert run(capsys, "--what", "entropy", *options)[0] == 0
    (pictures / "broken.png").write_bytes(next(pictures.rglob("*.png")).read_bytes()[:60])
    status, _, err = run(capsys, "--what", "entropy", *options)
    assert status == 2 and re.search(r"--images: .*broken\.png cannot be read \(.*\); take it out", err)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--what entropie --model MODEL", "invalid choice: 'entropie'"),
        ("--what top-p --model MODEL", "--what: top-p needs a text"),
        ("--what anisotropy --model owner/name", "--output: missing"),
        ("--what context --model MODEL --text source --target_text target", "context needs a translation model"),
        ("--what anisotropy --model MODEL --target_text target", "--target_text: given without --text"),
        ("--what all --model MODEL --text source --context 9", "is a translation model; leave it out"),
        ("--what variance-ratio --model GPT2 --text text", "variance-ratio needs a translation model"),
        ("--what entropy --model GPT2 --text text --target_text text", "is a decoder-only language model; leave"),
        ("--what entropy --model GPT2 --text text --context 25", "--context: 25 tokens; give 2 to 24"),
        ("--what likelihood --model CLASSIFIER", "likelihood needs a model of language"),
        ("--what entropy --model CLASSIFIER --text text", "is a classifier of pictures; leave it out, and give images"),
        ("--what entropy --model CLASSIFIER --images none", "holds no pictures"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, named, capsys, folder, files, classifier, monkeypatch, tmp_path):
    """What a word in capitals stands for is the folder of a model."""
    (tmp_path / "none").mkdir()
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    models = {"MODEL": folder("reluformer"), "GPT2": folder("gpt2"), "CLASSIFIER": classifier / "model"}
    status, out, err = run(capsys, *(models.get(word, word) for word in arguments.split()))
    said = err.strip().splitlines()[-1]
    assert (status, out) == (2, "") and said.startswith("reluformer: error: ") and named in said


def test_sentences_longer_than_the_limit_are_left_out_and_counted(undrawn, capsys, folder, files, pairs, tmp_path):
    options = ["--documents", files / "documents", "--max_length", 20, "--output", tmp_path]
    status, _, err = run(capsys, "--what", "likelihood", "--model", folder("reluformer"), *pairs, *options)
    read, left = result(tmp_path, "likelihood")["text"], "longer than 20 tokens"
    assert status == 0 and 0 < read["sentences"] < len(SOURCES) and f"× {left}" in err
    assert read["skipped"] == {left: len(SOURCES) - read["sentences"]}


@pytest.mark.parametrize(
    ("tokens", "weights", "shapes"),
    [(2048, 2**20, [(6, 30)]), (20, 2**20, [(1, 30), (2, 9), (3, 4)]), (1000, 160, [(1, 30), (1, 9), (4, 5)])],
)
def test_batches_hold_every_pair_once_within_the_limits(tokens, weights, shapes, monkeypatch):
    monkeypatch.setattr(inputs, "BATCH_TOKENS", tokens)
    monkeypatch.setattr(inputs, "BATCH_WEIGHTS", weights)
    lengths = [(3, 4), (30, 2), (2, 9), (5, 5), (1, 1), (4, 3)]
    pairs = [([9] * source, [number + 4] * target) for number, (source, target) in enumerate(lengths)]
    found, seen = [], []
    for places, batch in pair_batches(make_model("reluformer", 60), pairs):
        assert places == [int(row[0]) - 4 for row in batch.labels]
        assert batch.real["encoder"].sum(-1).tolist() == [lengths[place][0] for place in places]
        seen += places
        found.append((len(places), max(batch.inputs["input_ids"].shape[1], batch.labels.shape[1])))
    assert sorted(seen) == list(range(len(lengths))) and found == shapes
