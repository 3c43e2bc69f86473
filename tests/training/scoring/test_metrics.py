"""Scores against values computed by hand."""

import logging
import sys

import pytest
from sacrebleu.metrics import BLEU

from reluformer.configuration.errors import UserError
from reluformer.configuration.scores import SCORES
from reluformer.training.data.moses import _say_tokenized
from reluformer.training.scoring.metrics import describe_scores, score_documents, score_translations

REFERENCES = ["A man is riding a red bicycle.", "Two dogs play in the snow, again.", "It 's done ."]
HYPOTHESES = ["a man is riding a red bicycle.", "Two dogs play in the snow, again.", "It 's over ."]


def test_perfect_translations_score_100():
    scores = score_translations(REFERENCES, REFERENCES, language="en")
    names = [name for name, score in SCORES.items() if not score.of_documents]
    names.remove("tokenized_bleu")
    assert {name: scores[name] for name in names} == pytest.approx(dict.fromkeys(names, 100.0))
    assert scores["sentences"] == 3


def test_only_the_lower_cased_scores_forgive_case():
    scores = score_translations(["a man is riding a red bicycle."], REFERENCES[:1])
    assert scores["bleu"] < 100
    assert scores["tokenized_lowercase_bleu"] == pytest.approx(100.0)
    assert scores["exact_match"] == 0


def test_exact_match_is_a_percentage_and_ignores_outer_space():
    assert score_translations(["one ", "three", "\tfour", "5"], ["one", "two", "four", "6"])["exact_match"] == 50.0


def test_signatures_name_case_tokenisation_and_version():
    scores = score_translations(HYPOTHESES, REFERENCES, language="en")
    assert "case:mixed" in scores["bleu_signature"] and "tok:13a" in scores["bleu_signature"]
    assert "version:" in scores["bleu_signature"] and "version:" in scores["chrf_signature"]
    assert "case:lc" in scores["tokenized_lowercase_bleu_signature"]
    assert "tok:13a" in scores["tokenized_lowercase_bleu_signature"]
    assert "tok:none" in scores["moses_lowercase_bleu_signature"]
    assert "moses:en" in scores["moses_lowercase_bleu_signature"]


def test_moses_score_is_bleu_over_moses_tokens():
    pytest.importorskip("sacremoses")
    scores = score_translations(["Well, he can't go today now"], ["well , he ca n't"], language="en")
    expected = BLEU(tokenize="none", force=True).corpus_score(
        ["well , he can 't go today now"], [["well , he ca n 't"]]
    )
    assert scores["moses_lowercase_bleu"] == pytest.approx(expected.score)


def test_tokenised_text_is_scored_as_it_stands_and_detokenised():
    pytest.importorskip("sacremoses")
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
    ("line", "count", "times"),
    [("it &apos;s", 11, 1), ("it &apos;s", 10, 0), ("it is .", 101, 1), ("it is .", 100, 0)],
)
def test_plain_text_that_looks_tokenised_is_said_once(caplog, line, count, times):
    _say_tokenized.cache_clear()
    lines = [line] * count + ["It is."] * (1000 - count)
    for _ in range(2):
        score_translations(lines, lines)
    assert [message.split(":")[0] for message in caplog.messages] == ["The text looks tokenised by Moses"] * times


def test_without_a_language_there_is_no_moses_score():
    assert not any(name.startswith("moses") for name in score_translations(HYPOTHESES, REFERENCES))


def test_without_sacremoses_a_warning_says_so(monkeypatch, caplog):
    for module in [name for name in sys.modules if name.split(".")[0] == "sacremoses"] + ["sacremoses"]:
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with caplog.at_level(logging.WARNING):
        scores = score_translations(HYPOTHESES, REFERENCES, language="en")
    assert not any(name.startswith("moses") for name in scores)
    assert "sacremoses" in caplog.text


def test_for_a_language_without_moses_rules_a_warning_says_so(caplog):
    pytest.importorskip("sacremoses")
    with caplog.at_level(logging.WARNING):
        scores = score_translations(HYPOTHESES, REFERENCES, language="xx")
    assert not any(name.startswith("moses") for name in scores)
    assert "'xx'" in caplog.text


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a"], ["a", "b"], "1 hypotheses but 2 references"),
        ([], [], "no translations"),
        ("a", ["a"], "one string"),
        (["a", None], ["a", "b"], r"hypotheses\[1\].*NoneType"),
    ],
)
def test_bad_input_is_refused(hypotheses, references, message):
    with pytest.raises(UserError, match=message):
        score_translations(hypotheses, references)


def test_scores_are_described_in_one_line():
    line = describe_scores(score_translations(HYPOTHESES, REFERENCES))
    assert "exact match 33.33 %" in line and "Moses" not in line and "\n" not in line
