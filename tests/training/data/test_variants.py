"""Variants of training pairs: the shares that were asked for, one change each, and the same rows for the same seed."""

import datasets
import numpy as np
import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import VariantsConfig
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.data import variants as variants_module
from reluformer.training.data.corpus import load_split
from reluformer.training.data.variants import foreign_text, typographic_quotes, vary, with_variants
from reluformer.training.run.preparation import prepare_corpus

ROWS = 600
SOURCES = [f'Größe {number}: "Äpfel", Öl!' for number in range(ROWS)]
TARGETS = [f'Size {number}: "apples", oil!' for number in range(ROWS)]


@pytest.fixture(scope="module")
def pairs():
    return datasets.Dataset.from_dict({"source": SOURCES, "target": TARGETS})


def varied(pairs, **shares) -> list[tuple[str, str]]:
    rows, report = with_variants(pairs, VariantsConfig(**shares))
    assert report.name == f"train, {shares.get('passes', 1)} passes with variants"
    assert report.read == report.kept == len(rows) == len(pairs) * shares.get("passes", 1)
    return list(zip(rows["source"], rows["target"], strict=True))


def test_without_shares_the_pairs_come_as_they_are_once_a_pass(pairs):
    assert varied(pairs, passes=2) == [*zip(SOURCES, TARGETS, strict=True)] * 2


def test_no_pair_is_lost_between_the_blocks_that_are_read_at_once(pairs, monkeypatch):
    monkeypatch.setattr(variants_module, "_BLOCK", 7)
    assert varied(pairs, seed=7) == [*zip(SOURCES, TARGETS, strict=True)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lower", 'größe 7: "äpfel", öl!'),
        ("upper", 'GRÖSSE 7: "ÄPFEL", ÖL!'),
        ("no_punctuation", 'Größe 7: "Äpfel", Öl'),
        ("umlauts", 'Groesse 7: "Aepfel", Oel!'),
        ("untranslated", 'Size 7: "apples", oil!'),
    ],
)
def test_each_variant_changes_the_source_alone(name, expected, pairs):
    assert varied(pairs, **{name: 1.0})[7] == (expected, TARGETS[7])


@pytest.mark.parametrize(("source", "expected"), [("Ça va ?", "Ça va"), ("Ach …", "Ach"), ("...", "..."), ("Ja", "Ja")])
def test_without_its_punctuation_a_source_has_no_space_at_its_end_and_is_not_empty(source, expected):
    variants = VariantsConfig(no_punctuation=1.0)
    assert vary(source, "t", variants, np.random.default_rng(0)) == {"source": expected, "target": "t"}


def test_a_pass_is_not_that_of_the_next_seed(pairs):
    assert varied(pairs, passes=2, lower=0.5)[ROWS:] != varied(pairs, lower=0.5, seed=1)


def test_what_is_drawn_for_one_variant_does_not_depend_on_another(pairs):
    sources = [source for source, _ in varied(pairs, passes=4, lower=0.5, no_punctuation=0.5)]
    found = [(source.islower(), source.endswith("!")) for source in sources]
    deviation = (4 * ROWS * 3 / 16) ** 0.5
    for kind in ((False, False), (False, True), (True, False), (True, True)):
        assert abs(found.count(kind) - ROWS) < 4.5 * deviation, kind
    kept = [source for source, target in varied(pairs, untranslated=0.5, no_punctuation=0.5) if source != target]
    assert 0.3 * len(kept) < sum(source.endswith("!") for source in kept) < 0.7 * len(kept)


def test_every_umlaut_is_written_out():
    variants = VariantsConfig(umlauts=1.0)
    source = vary("äöü ÄÖÜ ß", "t", variants, np.random.default_rng(0))["source"]
    assert source == "aeoeue AeOeUe ss"


def test_untranslated_and_foreign_pairs_have_their_shares_beside_each_other(pairs):
    rows = varied(pairs, untranslated=0.5, foreign=0.5)
    untranslated = sum(source in TARGETS for source, _ in rows)
    assert all(source == target for source, target in rows)
    assert abs(untranslated - ROWS / 2) < 4.5 * (ROWS / 4) ** 0.5


def test_quotation_marks_become_typographic_or_plain():
    assert typographic_quotes('Er sagt: "Ja." "Was?" Wie geht\'s?') == "Er sagt: „Ja.“ „Was?“ Wie geht’s?"
    generator = np.random.default_rng(0)
    found = {vary("„Ja“, 'so' ’t", "t", VariantsConfig(quotes=1.0), generator)["source"] for _ in range(50)}
    assert found == {"\"Ja\", 'so' 't", "„Ja“, ’so’ ’t"}
    sources = [vary('"a"', "t", VariantsConfig(quotes=1.0), generator)["source"] for _ in range(400)]
    assert abs(sources.count("„a“") - 200) < 4.5 * 10
    marks = "„a“ “b” «c» »d« ‚e‘ ’f’"
    plain = {vary(marks, "t", VariantsConfig(quotes=1.0), generator)["source"] for _ in range(50)}
    assert plain == {marks, '"a" "b" "c" "d" \'e\' \'f\''}, "what is typographic already stays, or becomes plain"


def test_up_to_four_pairs_are_joined_on_both_sides(pairs):
    numbers, followers = [], set()
    for source, target in varied(pairs, joined=1.0):
        parts = source.split("! ")
        numbers.append(len(parts))
        expected = [SOURCES.index(part.removesuffix("!") + "!") for part in parts]
        assert target == " ".join(TARGETS[index] for index in expected)
        followers.update(expected[1:])
    assert set(numbers) == {2, 3, 4} and min(map(numbers.count, (2, 3, 4))) > ROWS / 5
    assert len(followers) > 0.7 * ROWS, "they are drawn from all pairs"


def test_other_scripts_stay_as_they_are(pairs):
    rows = varied(pairs, foreign=1.0)
    assert all(source == target and not source.isascii() and source == source.strip() for source, target in rows)
    assert len({source for source, _ in rows}) > 0.9 * ROWS
    generator = np.random.default_rng(0)
    texts = [foreign_text(generator) for _ in range(300)]
    assert {ord(text[0]) >> 8 for text in texts} >= {0x3, 0x4, 0x5, 0x6, 0x9, 0x30, 0x1F6}
    words = [text.split(" ") for text in texts]
    assert set(map(len, words)) == {1, 2, 3} and {len(word) for text in words for word in text} == {*range(1, 7)}
    assert set("αωаяאת") <= set("".join(texts)), "from the first letter to the last"


def test_shares_are_met_and_draws_are_new_in_each_pass_and_the_same_again(pairs):
    shares = {"passes": 4, "lower": 0.2, "upper": 0.1, "umlauts": 0.3, "no_punctuation": 0.4}
    rows = varied(pairs, **shares)
    assert rows == varied(pairs, **shares) != varied(pairs, **shares, seed=1)
    passes = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
    assert len({tuple(each) for each in passes}) == 4
    sources = [source for source, _ in rows]
    counts = {
        "lower": sum(source.islower() for source in sources),
        "upper": sum(source.isupper() for source in sources),
        "umlauts": sum("OE" in source.upper() for source in sources),
        "no_punctuation": sum(not source.endswith("!") for source in sources),
    }
    for name, count in counts.items():
        deviation = (shares[name] * (1 - shares[name]) * len(rows)) ** 0.5
        assert abs(count - shares[name] * len(rows)) < 4.5 * deviation, name


def recipe(tmp_path, *options):
    demo = ["--config", "demo", "--training.output_dir", str(tmp_path / "run"), "--data.demo.train", "200"]
    return parse_recipe([*demo, "--tokenizer.vocab_size", "300", "--data.variants.upper", "1", *options])


def test_only_the_training_split_has_variants(tmp_path):
    prepared = prepare_corpus(recipe(tmp_path, "--data.variants.passes", "2"))
    plain = {split: load_split(recipe(tmp_path).data, split)[0] for split in ("train", "validation", "test")}
    assert list(prepared.pairs["train"]["source"]) == [text.upper() for text in plain["train"]["source"]] * 2
    assert len(prepared.encoded["train"]) == 400
    assert prepared.pairs["test"]["source"][:] == plain["test"]["source"][:]
    decoded = prepared.tokenizer.decode(prepared.encoded["train"][0]["input_ids"], skip_special_tokens=True)
    assert decoded == plain["train"]["source"][0].upper()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--data.variants.lower", "0.5"], r"data\.variants: lower and upper are 1\.5 together"),
        (["--data.variants.lower", "-0.1"], "lower"),
        (["--data.variants.untranslated", "0.6", "--data.variants.foreign", "0.6"], "untranslated and foreign are 1.2"),
        (["--data.text", "moses", "--evaluation.headline", "bleu"], r"data\.variants: are of plain text"),
        (["--data.packing.too_long", "keep"], "data.variants: does not go with data.packing"),
    ],
)
def test_variants_that_exclude_each_other_are_refused(tmp_path, options, says):
    with pytest.raises(UserError, match=says):
        recipe(tmp_path, *options)
