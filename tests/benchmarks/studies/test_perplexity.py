"""What is kept of a language model's losses is enough to compare it with another one, document by document."""

import csv

import numpy as np
import pytest

from benchmarks.studies.bootstrap import SEED, STATISTICS, bootstrap_of_means, comparable
from benchmarks.studies.perplexity import perplexity_rows, perplexity_statistics

KIND = STATISTICS["perplexity"]


def losses(folder, name, tokens, nats, *, split="test", context=128):
    """Statistics of documents with so many tokens and so much loss."""
    path = folder / f"{name}.tsv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
        writer.writerow(("document", "bytes", "tokens", "nats"))
        for number, (count, total) in enumerate(zip(tokens, nats, strict=True)):
            writer.writerow((f"a\tfolder/{number}.py", 3 * count, count, f"{total:.6f}"))
    return perplexity_statistics(path, split, context)


def two_models(folder, documents=41, gap=0.05, seed=0):
    """Statistics of two models on the same documents, their tokens, and the losses of both."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3, 900, documents)
    first = tokens * rng.normal(2.3, 0.4, documents)
    second = first + tokens * rng.normal(gap, 0.1, documents)
    statistics = [losses(folder, str(number), tokens, nats) for number, nats in enumerate((first, second))]
    return statistics, tokens, (first, second)


def test_a_perplexity_is_of_all_tokens_and_every_document_is_kept(tmp_path):
    (found, _), tokens, (nats, _) = two_models(tmp_path)
    assert found["score"] == pytest.approx(np.exp(nats.sum() / tokens.sum()), rel=1e-8)
    assert found["per_byte"] == pytest.approx(np.exp(nats.sum() / (3 * tokens.sum())), rel=1e-8)
    assert found["tokens"] == tokens.sum() and found["signature"] == "test, contexts of 128 tokens"
    rows = perplexity_rows(found)
    np.testing.assert_allclose(rows, np.stack([nats, tokens], axis=1), atol=1e-6)
    assert KIND.score(rows.sum(0)) == pytest.approx(found["score"])


def test_the_bootstrap_is_that_of_the_documents_themselves(tmp_path):
    statistics, tokens, (first, second) = two_models(tmp_path, gap=0.02)
    found = bootstrap_of_means(KIND, *([each] for each in statistics), samples=400)
    drawn = np.random.default_rng(SEED).choice(len(tokens), size=(400, len(tokens)), replace=True)
    sampled = [np.exp(nats[drawn].sum(1) / tokens[drawn].sum(1)) for nats in (first, second)]
    differences = sampled[0] - sampled[1]
    difference = np.exp(first.sum() / tokens.sum()) - np.exp(second.sum() / tokens.sum())
    beyond = np.sum(abs(differences - differences.mean()) >= abs(difference))
    assert found.difference == pytest.approx(difference, abs=1e-6)
    assert found.p_value == pytest.approx((beyond + 1) / 401)
    assert 0.005 < found.p_value < 1, "a test of nothing"


def test_only_losses_of_the_same_tokens_are_compared(tmp_path):
    (first, second), tokens, (nats, _) = two_models(tmp_path)
    assert comparable(first, second)
    other_tokenizer = losses(tmp_path, "other", tokens + 1, nats)
    longer = losses(tmp_path, "longer", tokens, nats, context=256)
    held_out = losses(tmp_path, "held_out", tokens, nats, split="validation")
    for other in (other_tokenizer, longer, held_out, None):
        assert not comparable(first, other)


def test_a_loss_beyond_all_floats_is_infinite(tmp_path):
    with np.errstate(over="ignore"):
        assert losses(tmp_path, "gone", [2], [2000.0])["score"] == float("inf")
