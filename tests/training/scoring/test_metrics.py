"""Scores against values computed by hand."""

import logging
import sys

import pytest
from sacrebleu.metrics import BLEU

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES
from reluformer.training.scoring import metrics
from reluformer.training.scoring.metrics import describe_scores, score_documents, score_translations
from reluformer.translating import moses

REFERENCES = ["A man is riding a red bicycle.", "Two dogs play in the snow, again.", "It 's done ."]
HYPOTHESES = ["a man is riding a red bicycle.", "Two dogs play in the snow, again.", "It 's over ."]


def test_perfect_translations_score_100():
    scores = score_translations(REFERENCES, REFERENCES, language="en")
    names = [name for name, score in SCORES.items() if not score.of_documents and name != "tokenized_bleu"]
    assert {name: scores[name] for name in names} == pytest.approx(dict.fromkeys(names, 100.0))
    assert scores["sentences"] == 3


def test_case_counts_but_for_the_lower_cased_scores_and_outer_space_does_not():
    scores = score_translations(["a man is riding a red bicycle."], REFERENCES[:1])
    assert scores["bleu"] < 100 and scores["exact_match"] == 0
    assert scores["tokenized_lowercase_bleu"] == pytest.approx(100.0)
    assert score_translations(["one ", "three", "\tfour", "5"], ["one", "two", "four", "6"])["exact_match"] == 50.0


def test_signatures_name_case_tokenisation_and_version():
    scores = score_translations(HYPOTHESES, REFERENCES, language="en")
    for name, parts in {
        "bleu": ("case:mixed", "tok:13a", "version:"),
        "chrf": ("version:",),
        "tokenized_lowercase_bleu": ("case:lc", "tok:13a"),
        "moses_lowercase_bleu": ("tok:none", "lowercased|moses:en"),
    }.items():
        assert all(part in scores[f"{name}_signature"] for part in parts)


def test_moses_score_is_bleu_over_moses_tokens():
    scores = score_translations(["Well, he can't go today now"], ["well , he ca n't"], language="en")
    tokens = ["well , he can 't go today now"], [["well , he ca n 't"]]
    expected = BLEU(tokenize="none", force=True).corpus_score(*tokens)
    assert scores["moses_lowercase_bleu"] == pytest.approx(expected.score)
    assert "moses_lowercase_bleu" not in score_translations(HYPOTHESES, REFERENCES)


def test_tokenised_text_is_scored_as_it_stands_and_detokenised():
    hypothesis, reference = "i don &apos;t know that man .", "i don &apos;t know this man ."
    scores = score_translations([hypothesis], [reference], language="en", text="moses")
    plain = score_translations(["i don't know that man."], ["i don't know this man."])
    as_it_stands = BLEU(tokenize="none", force=True).corpus_score([hypothesis], [[reference]])
    assert scores["tokenized_bleu"] == pytest.approx(as_it_stands.score)
    assert (scores["bleu"], scores["chrf"]) == (plain["bleu"], plain["chrf"])
    assert scores["bleu_signature"].startswith(f"{plain['bleu_signature']}|detokenized:moses:en")
    assert "tokenized_bleu" not in plain and "moses_lowercase_bleu" not in scores
    documents = score_documents([hypothesis], ["a"], {"a": reference}, language="en", text="moses")
    assert documents["document_bleu"] == plain["bleu"]
    with pytest.raises(UserError, match="language: missing"):
        score_translations([hypothesis], [reference], text="moses")


@pytest.mark.parametrize(
    ("language", "installed", "says"), [("en", False, "pip install sacremoses"), ("xx", True, "'xx'")]
)
def test_a_warning_says_why_the_moses_score_is_missing(language, installed, says, monkeypatch, caplog):
    moses._tokenizer.cache_clear()
    if not installed:
        monkeypatch.setitem(sys.modules, "sacremoses", None)
    with caplog.at_level(logging.WARNING):
        scores = score_translations(HYPOTHESES, REFERENCES, language=language)
    assert "moses_lowercase_bleu" not in scores and says in caplog.text


def test_each_hypothesis_needs_a_reference():
    for hypotheses, references in ((["a"], ["a", "b"]), ([], [])):
        with pytest.raises(UserError, match=f"{len(hypotheses)} hypotheses and {len(references)} references"):
            score_translations(hypotheses, references)


def test_scores_are_described_in_one_line():
    line = describe_scores(score_translations(HYPOTHESES, REFERENCES))
    assert "exact match 33.33 %" in line and "Moses" not in line and "\n" not in line


def test_text_that_looks_tokenised_is_told_once(caplog):
    """Not in three lines of sacreBLEU at each evaluation, and not where the corpus is known to be tokenised."""
    metrics._warn_of_tokenized_text.cache_clear()
    texts = ["it is done ."] * 100
    score_translations(texts, texts, language="en", text="moses")
    score_translations(texts[:99], texts[:99])
    assert not caplog.text
    for _ in range(2):
        assert score_translations(texts, texts)["bleu"] == pytest.approx(100)
    assert len(caplog.records) == 1 and "set data.text to moses" in caplog.records[0].message
    assert caplog.records[0].message.startswith("100 or more translations end")
