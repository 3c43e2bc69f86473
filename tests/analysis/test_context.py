"""The figure `context`: against each document and each sentence by hand, and as a command, with wrong input."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from reluformer.analysis.likelihood import positions_table
from reluformer.commands import main as cli

from .small_models import SOURCES, TARGETS, make_model, save_model

DOCUMENTS = ["a", "a", "b", "c", "c"]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.fixture
def asked(tmp_path):
    names = {"text": SOURCES, "target_text": TARGETS, "documents": DOCUMENTS}
    return {f"--{name}": write(tmp_path / f"{name}.txt", lines) for name, lines in names.items()}


def analyze(folder, asked, *more):
    command = ["analyze", "--what", "context", "--model", str(folder)]
    return cli.main([*command, *(part for item in asked.items() for part in item), *more])


def nll_of(model, source, target):
    """−log p of each token of `target` but its end token, by the model's own loss on this pair alone."""
    labels = torch.tensor([target])
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), labels=labels).logits[0].double()
    return cross_entropy(logits, labels[0], reduction="none")[:-1].tolist()


@pytest.mark.parametrize("kind", ["reluformer", "vanilla", "marian"])
@pytest.mark.parametrize("batch_tokens", ["2048", "1"])
def test_it_is_the_likelihood_of_each_document_and_of_each_sentence_alone(
    kind, batch_tokens, asked, encoded, small_tokenizer, tmp_path, capsys
):
    folder = save_model(tmp_path / kind, kind, small_tokenizer)
    assert analyze(folder, asked, "--batch_tokens", batch_tokens) == 0, capsys.readouterr().err
    model = make_model(kind, len(small_tokenizer))
    end = small_tokenizer.eos_token_id
    rows = []  # (place, in the document, alone)
    for name in dict.fromkeys(DOCUMENTS):
        parts = [pair for pair, document in zip(encoded, DOCUMENTS, strict=True) if document == name]
        source, target = ([token for pair in parts for token in pair[side][:-1]] for side in (0, 1))
        within = nll_of(model, [*source, end], [*target, end])
        alone = [nll for pair in parts for nll in nll_of(model, *pair)]
        assert len(within) == len(alone) == len(target)
        rows += [(place, *both) for place, both in enumerate(zip(within, alone, strict=True), 1)]
    table = json.loads((folder / "analysis" / "context.json").read_text())["table"]
    spans = {"all": (1, 99), "1": (1, 1), "2": (2, 2), "3-4": (3, 4), "5-8": (5, 8), "9-16": (9, 16), "17-32": (17, 32)}
    assert [row["positions"] for row in table] == list(spans)[: len(table)] and len(table) >= 6
    for row in table:
        first, last = spans[row["positions"]]
        chosen = [both for place, *both in rows if first <= place <= last]
        within, alone = (sum(column) / len(chosen) for column in zip(*chosen, strict=True))
        assert row["tokens"] == len(chosen)
        assert row["nll"] == pytest.approx(within, rel=1e-5)
        assert row["nll_alone"] == pytest.approx(alone, rel=1e-5)
        assert row["gain"] == pytest.approx(alone - within, abs=1e-5)
    assert (folder / "analysis" / "context.png").stat().st_size > 10_000


def test_a_document_of_one_sentence_gains_nothing(asked, small_tokenizer, tmp_path, capsys):
    folder = save_model(tmp_path / "model", "reluformer", small_tokenizer)
    write(tmp_path / "documents.txt", ["a", "b", "c", "d", "e"])
    assert analyze(folder, asked) == 0, capsys.readouterr().err
    table = json.loads((folder / "analysis" / "context.json").read_text())["table"]
    assert all(row["gain"] == pytest.approx(0, abs=1e-6) for row in table)


def test_sentences_longer_than_the_limit_are_left_out_of_both_and_counted(asked, small_tokenizer, tmp_path, capsys):
    folder = save_model(tmp_path / "model", "reluformer", small_tokenizer)
    lengths = [
        max(len(small_tokenizer(source)["input_ids"]), len(small_tokenizer(text_target=target)["input_ids"]))
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    limit = max(lengths) - 1
    assert analyze(folder, asked, "--max_length", str(limit)) == 0, capsys.readouterr().err
    told = json.loads((folder / "analysis" / "context.json").read_text())
    kept = [index for index, length in enumerate(lengths) if length <= limit]
    assert told["text"]["skipped"] == {f"longer than {limit} tokens": len(SOURCES) - len(kept)}
    targets = small_tokenizer(text_target=[TARGETS[index] for index in kept])["input_ids"]
    assert told["table"][0]["tokens"] == sum(len(ids) - 1 for ids in targets)
    assert told["text"]["sentences"] == len(kept) and told["text"]["max_length"] == limit


def test_documents_are_packed_for_the_other_figures_too(asked, small_tokenizer, tmp_path, capsys):
    folder = save_model(tmp_path / "model", "reluformer", small_tokenizer)
    assert analyze(folder, asked) == 0
    command = ["analyze", "--what", "likelihood", "attention-maps", "--maps", "1", "--model", str(folder)]
    assert cli.main([*command, *(part for item in asked.items() for part in item)]) == 0, capsys.readouterr().err
    likelihood = json.loads((folder / "analysis" / "likelihood.json").read_text())
    context = json.loads((folder / "analysis" / "context.json").read_text())
    assert likelihood["text"]["packed_documents"] == 3
    assert likelihood["table"][0]["tokens"] == context["table"][0]["tokens"] + 3  # an end token each
    maps = json.loads((folder / "analysis" / "attention-maps.json").read_text())
    assert maps["text"]["packed_documents"] == 3


def test_the_error_of_the_gain_by_hand():
    within = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0]), torch.tensor([0.5, 1.5])]
    alone = [torch.tensor([1.5, 2.0, 4.0]), torch.tensor([2.5]), torch.tensor([0.0, 2.5])]
    whole, first, second, last = positions_table(within, alone, "nll_alone")
    assert (whole["tokens"], whole["gain"]) == (6, pytest.approx(2.5 / 6))
    gain = 2.5 / 6
    residuals = [1.5 - 3 * gain, 0.5 - gain, 0.5 - 2 * gain]
    assert whole["gain_error"] == pytest.approx((1.5 * sum(each**2 for each in residuals)) ** 0.5 / 6)
    assert (first["positions"], first["tokens"], first["gain"]) == ("1", 3, pytest.approx(0.5 / 3))
    assert (second["positions"], second["nll"], second["nll_alone"]) == ("2", 1.75, 2.25)
    assert second["gain_error"] == pytest.approx((2 * (0.5**2 + 0.5**2)) ** 0.5 / 2), (
        "of two documents, of which one is the third"
    )
    assert (last["positions"], last["gain"], last["gain_error"]) == ("3-4", 1.0, None)
    assert [row["last"] for row in (whole, first, second, last)] == [None, 1, 2, 4]


@pytest.mark.parametrize(
    "without, more, message",
    [
        (["--documents"], [], "--documents: missing; context needs"),
        (["--target_text"], [], "--documents: given without --target_text"),
        (["--text"], [], "--text: missing; context needs a file of source lines"),
        ([], ["--max_length", "41"], "--max_length: 41 tokens of a packed document; give at most 40"),
        ([], ["--max_length", "1"], "longer than 1 tokens"),
    ],
)
def test_wrong_input(without, more, message, asked, small_tokenizer, tmp_path, capsys):
    folder = save_model(tmp_path / "model", "reluformer", small_tokenizer)
    given = {name: path for name, path in asked.items() if name not in without}
    assert analyze(folder, given, *more) == 2
    assert message in capsys.readouterr().err
