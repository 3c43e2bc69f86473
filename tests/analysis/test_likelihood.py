"""The figure `likelihood`: against the model's own loss, by hand on random logits, and as a command."""

import csv
import json

import pytest
import torch
from torch.nn.functional import cross_entropy

from reluformer.analysis.collection import TextBatch
from reluformer.analysis.likelihood import LikelihoodSums
from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError

from .small_models import SOURCES, TARGETS, make_model, save_model


@pytest.fixture
def asked(tmp_path):
    (tmp_path / "source.txt").write_text("\n".join(SOURCES) + "\n")
    (tmp_path / "target.txt").write_text("\n".join(TARGETS) + "\n")
    return ["--text", str(tmp_path / "source.txt"), "--target_text", str(tmp_path / "target.txt")]


@pytest.mark.parametrize("kind", ["reluformer", "vanilla", "marian", "t5"])
@pytest.mark.parametrize("more", [[], ["entropy", "ffn-sparsity"]])
def test_it_is_the_cross_entropy_of_each_pair_alone(kind, more, asked, encoded, small_tokenizer, tmp_path, capsys):
    folder = save_model(tmp_path / kind, kind, small_tokenizer)
    what = ["likelihood", *([] if kind == "t5" else more)]
    command = ["analyze", "--what", *what, "--model", str(folder), *asked, "--batch_tokens", "30"]
    assert cli.main(command) == 0, capsys.readouterr().err
    model = make_model(kind, len(small_tokenizer))
    nll, right = [], []
    with torch.no_grad():
        for source, target in encoded:
            labels = torch.tensor([target])
            logits = model(input_ids=torch.tensor([source]), labels=labels).logits[0].double()
            nll += cross_entropy(logits, labels[0], reduction="none").tolist()
            right += (logits.argmax(dim=-1) == labels[0]).tolist()
    table = json.loads((folder / "analysis" / "likelihood.json").read_text())["table"]
    assert table[0]["positions"] == "all" and table[0]["tokens"] == len(nll)
    assert table[0]["nll"] == pytest.approx(sum(nll) / len(nll), rel=1e-5)
    assert table[0]["accuracy"] == pytest.approx(sum(right) / len(right))
    with open(folder / "analysis" / "likelihood.csv", newline="") as file:
        assert [row["positions"] for row in csv.DictReader(file)] == [row["positions"] for row in table]
    assert (folder / "analysis" / "likelihood.png").stat().st_size > 10_000


def test_groups_of_positions_by_hand():
    torch.manual_seed(5)
    ids, logits = torch.randint(0, 11, (3, 19)), 3 * torch.randn(3, 19, 11)
    sums = LikelihoodSums()
    sums.update(TextBatch(ids[:1]), logits[:1])
    sums.update(TextBatch(ids[1:]), logits[1:])
    table = {row["positions"]: row for row in sums.table()}
    assert list(table) == ["all", "1", "2", "3-4", "5-8", "9-16", "17-32"]
    spans = {"1": (0, 1), "2": (1, 2), "3-4": (2, 4), "5-8": (4, 8), "9-16": (8, 16), "17-32": (16, 18), "all": (0, 18)}
    for name, (first, last) in spans.items():
        wanted, seen = ids[:, first + 1 : last + 1], logits[:, first:last].double()
        p = seen.softmax(dim=-1)
        expected = {
            "tokens": wanted.numel(),
            "nll": -p.gather(2, wanted.unsqueeze(2)).log().mean().item(),
            "accuracy": (p.argmax(dim=-1) == wanted).double().mean().item(),
            "entropy": -(p * p.log()).sum(dim=-1).mean().item(),
            "vocabulary_nll": -p.log().mean().item(),
        }
        for column, value in expected.items():
            assert table[name][column] == pytest.approx(value, rel=1e-5), (name, column)


def test_a_token_that_is_ruled_out_counts_for_no_mean_over_the_vocabulary():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [0.0, 0.0, 0.0]]])
    sums = LikelihoodSums()
    sums.update(TextBatch(torch.tensor([[0, 1]])), logits)
    (whole, _) = sums.table()
    for column in ("nll", "entropy", "vocabulary_nll"):
        assert whole[column] == pytest.approx(torch.tensor(2.0).log().item())


@pytest.mark.parametrize(
    ("logits", "message"), [(None, "nothing that the model predicts"), (-torch.inf, "must be a number")]
)
def test_what_has_no_likelihood_is_refused(logits, message):
    sums = LikelihoodSums()
    if logits is not None:
        scores = torch.zeros(1, 2, 3)
        scores[0, 0, 1] = logits
        sums.update(TextBatch(torch.tensor([[0, 1]])), scores)
    with pytest.raises(UserError, match=message):
        sums.table()
