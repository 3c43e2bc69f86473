"""What the two figures of zeros tell beside shares: perplexities, notes, NaN, medians and the names of tokens."""

import math
from types import SimpleNamespace

import pytest
import torch

from reluformer.analysis.causal_texts import read_causal_text
from reluformer.analysis.collection import observe
from reluformer.analysis.ffn_sparsity import FFNSparsity
from reluformer.analysis.figure import Subject
from reluformer.analysis.ppl_sparsity import PPLSparsity, SparsitySearch
from reluformer.configuration.errors import UserError

from .test_ffn_sparsity import batch_for, make, take


def test_the_perplexity_is_that_of_the_truncated_model():
    model, _ = make("llama")
    batch = batch_for(model)
    whole = take(PPLSparsity(ppl_increase=[5.0]), model, batch).table[0]
    search = SparsitySearch(model, [batch])
    assert whole["dense_perplexity"] == pytest.approx(math.exp(search.dense_cross_entropy))
    assert whole["perplexity"] == pytest.approx(math.exp(search.at_increase(5.0).cross_entropy))
    assert abs(whole["perplexity"] / whole["dense_perplexity"] - 1) > 1e-4


def test_notes_tell_where_the_search_ends_and_what_was_not_read():
    model, _ = make("opt")
    batch = batch_for(model)
    assert take(PPLSparsity(ppl_increase=[0.001]), model, batch).notes == []
    (note,) = take(PPLSparsity(ppl_increase=[1e9]), model, batch).notes
    assert "with the largest thresholds that are searched, the perplexity is not 1e+09 % higher" in note
    figure = PPLSparsity(ppl_increase=[0.001, 0.001], sparsity_tokens=40)
    watch = figure.watch(model)
    observe(model, [batch, batch], on_scores=watch.on_scores, on_batch=watch.on_batch)
    taken = figure.take(Subject(model))
    assert taken.notes == [
        "ppl-sparsity: read the first 33 of 66 tokens, padding included; --sparsity_tokens reads more"
    ]
    assert [row["layer"] for row in taken.table] == ["all", "all", 1, 2], "once, though given twice"


def test_nan_and_the_lower_of_two_medians():
    model, _ = make("opt")
    figure = FFNSparsity()
    watch = figure.watch(model)
    watch.on_scores("decoder", 0, torch.tensor([[math.nan, 0.0, 0.0], [0.0, 2.0, 3.0]]))
    row = figure.take(Subject(model)).table[1]
    assert (row["nan_count"], row["tokens"]) == (1, 2)
    assert row["median_of_a_token"] == pytest.approx(1 / 3) and row["most_of_a_token"] == pytest.approx(2 / 3)


def test_tokens_are_named_without_padding():
    model, _ = make("marian")
    figure = FFNSparsity()
    take(figure, model, batch_for(model))
    rows = figure._token_rows(Subject(model, SimpleNamespace(decode=lambda ids: f"t{ids[0]}")))
    named = [row["token"] for row in rows if (row["module"], row["layer"]) == ("encoder_ffn", 1)]
    assert named == [f"t{token}" for token in (5, 6, 7, 8, 9, 2, 11, 2, 3, 4, 2)]


def test_a_tokenizer_that_makes_no_tokens_is_refused(tmp_path):
    model, _ = make("opt")
    (tmp_path / "text.txt").write_text("some text")
    empty = type("Empty", (), {"eos_token_id": 0, "__call__": lambda self, *_, **__: {"input_ids": []}})()
    with pytest.raises(UserError, match=r"makes no tokens of .*text\.txt'; is there a tokenizer in the model's folder"):
        read_causal_text(tmp_path / "text.txt", model, empty)
