"""The analysis `likelihood`: against the model's own loss, and by hand on random logits."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from reluformer.analysis.collection import pair_batch, text_batch
from reluformer.analysis.inputs import Subject
from reluformer.analysis.likelihood import likelihood, likelihood_table
from reluformer.configuration.errors import UserError

from .small_models import make_model


@pytest.mark.parametrize("kind", ["reluformer", "marian", "t5"])
def test_it_is_the_cross_entropy_of_each_pair_alone(kind, encoded, small_tokenizer):
    model = make_model(kind, len(small_tokenizer))
    nll, right = [], []
    with torch.no_grad():
        for source, target in encoded:
            labels = torch.tensor([target])
            logits = model(input_ids=torch.tensor([source]), labels=labels).logits[0].double()
            nll += cross_entropy(logits, labels[0], reduction="none").tolist()
            right += (logits.argmax(dim=-1) == labels[0]).tolist()
    subject = Subject(model, batches=lambda: iter([pair_batch(model, encoded)]))
    whole = likelihood(subject).table[0]
    assert whole["positions"] == "all" and whole["tokens"] == len(nll)
    assert whole["nll"] == pytest.approx(sum(nll) / len(nll), rel=1e-5)
    assert whole["accuracy"] == pytest.approx(sum(right) / len(right))


def test_groups_of_positions_by_hand():
    torch.manual_seed(5)
    ids, logits = torch.randint(0, 11, (3, 19)), 3 * torch.randn(3, 19, 11)
    batches = [(text_batch(ids[part]).labels, logits[part]) for part in (slice(0, 1), slice(1, 3))]
    table = {row["positions"]: row for row in likelihood_table(batches)}
    assert list(table) == ["all", "1", "2", "3-4", "5-8", "9-16", "17-32"]
    spans = {"1": (0, 1), "2": (1, 2), "3-4": (2, 4), "5-8": (4, 8), "9-16": (8, 16), "17-32": (16, 18), "all": (0, 18)}
    for name, (first, last) in spans.items():
        wanted, seen = ids[:, first + 1 : last + 1], logits[:, first:last].double()
        p = seen.softmax(dim=-1)
        assert table[name]["tokens"] == wanted.numel()
        assert table[name]["nll"] == pytest.approx(-p.gather(2, wanted.unsqueeze(2)).log().mean().item(), rel=1e-5)
        assert table[name]["accuracy"] == pytest.approx((p.argmax(dim=-1) == wanted).double().mean().item())


def test_logits_in_bfloat16_are_summed_in_float32():
    labels, logits = torch.randint(0, 300, (1, 50)), torch.randn(1, 50, 300).bfloat16()
    found = likelihood_table([(labels, logits)])[0]["nll"]
    assert found == pytest.approx(float(cross_entropy(logits[0].double(), labels[0])), rel=1e-5)


@pytest.mark.parametrize(("label", "value"), [(-100, "nan"), (1, "inf")])
def test_what_has_no_likelihood_is_refused(label, value):
    logits = torch.tensor([[[0.0, -torch.inf, 0.0]]])
    with pytest.raises(UserError, match=f"{value}; it must be a number"):
        likelihood_table([(torch.tensor([[label]]), logits)])
