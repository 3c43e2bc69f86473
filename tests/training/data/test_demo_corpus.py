"""The demo corpus: a function from German to English, in splits that share no number."""

import math
from itertools import islice

import numpy as np
import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig, DemoConfig
from reluformer.training.data.corpus import load_split
from reluformer.training.data.demo_corpus import (
    BASIC_NUMBERS,
    KINDS,
    NUMBER_LIMIT,
    _draws,
    _words,
    demo_pairs,
    split_of_number,
)


@pytest.fixture(scope="module")
def splits():
    counts = {"train": 3_000, "validation": 300, "test": 300}
    return {split: demo_pairs(count, split=split, seed=5) for split, count in counts.items()}


def test_counts_columns_and_determinism(splits):
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 3_000, "validation": 300, "test": 300}
    assert splits["test"].column_names == ["source", "target"]
    assert demo_pairs(300, split="test", seed=5)[:] == splits["test"][:]
    assert demo_pairs(300, split="test", seed=6)[:] != splits["test"][:]
    data = DataConfig(source_language="de", target_language="en", demo=DemoConfig(test=300, seed=5))
    assert load_split(data, "test")[0][:] == splits["test"][:]


def test_a_source_has_one_target(splits):
    targets = {}
    for pairs in splits.values():
        for row in pairs:
            assert targets.setdefault(row["source"], row["target"]) == row["target"]
    years = {_words("year", year, 0) for year in range(1100, 2000)}
    assert len({source for source, _ in years}) == 900
    assert not {source for source, _ in years} & {_words("number", year, 0)[0] for year in range(1100, 2000)}


def test_splits_share_no_source_and_held_out_pairs_differ(splits):
    sources = {split: set(pairs["source"]) for split, pairs in splits.items()}
    assert len(sources["test"]) == len(sources["validation"]) == 300
    assert not sources["train"] & sources["test"] and not sources["validation"] & (sources["train"] | sources["test"])


def test_every_kind_of_a_number_is_in_its_split_and_basic_words_in_training(splits):
    assert {split_of_number(number) for number in BASIC_NUMBERS} == {"train"}
    held_out = {split: [n for n in range(101, 3000) if split_of_number(n) == split] for split in ("validation", "test")}
    assert all(0.03 < len(numbers) / 2900 < 0.07 for numbers in held_out.values())
    training = set(splits["train"]["source"]) | set(splits["validation"]["source"])
    for number in held_out["test"]:
        assert _words("number", number, 0)[0] not in training and _words("ordinal", number, 0)[0] not in training
    euros = {source.split(" euro")[0] for source in training if " euro" in source}
    assert not euros & {_words("amount", number, 50)[0].split(" euro")[0] for number in held_out["test"]}


@pytest.mark.parametrize(
    ("item", "german", "english"),
    [
        (("number", 21, 0), "einundzwanzig", "twenty-one"),
        (("number", 101_000, 0), "einhunderteintausend", "one hundred and one thousand"),
        (("number", 201_001, 0), "zweihunderteintausendeins", "two hundred and one thousand and one"),
        (("ordinal", 107, 0), "einhundertsiebte", "one hundred and seventh"),
        (("year", 1984, 0), "neunzehnhundertvierundachtzig", "nineteen eighty-four"),
        (("amount", 1, 1), "ein euro und ein cent", "one euro, one cent"),
    ],
)
def test_words(item, german, english):
    assert _words(*item) == (german, english)


def test_every_year_number_and_cent_is_drawn_within_its_limits_and_kinds_by_their_shares():
    drawn = list(islice(_draws(np.random.default_rng(0)), 100_000))
    of = {kind: [(number, cents) for each, number, cents in drawn if each == kind] for kind in KINDS}
    for kind, share in KINDS.items():
        assert len(of[kind]) / len(drawn) == pytest.approx(share, abs=0.01)
        assert {cents for _, cents in of[kind]} == (set(range(1, 100)) if kind == "amount" else {0})
    assert {year for year, _ in of["year"]} == set(range(1100, 2000))
    numbers = [number for number, _ in of["number"]]
    assert min(numbers) == 1 and NUMBER_LIMIT / 2 < max(numbers) < NUMBER_LIMIT
    # as many of each number of digits
    assert sum(number < 1000 for number in numbers) / len(numbers) == pytest.approx(
        3 / math.log10(NUMBER_LIMIT), abs=0.02
    )


def test_bad_arguments_are_refused():
    for count in (0, 20_001):
        with pytest.raises(UserError, match="expected 1 to 20000"):
            demo_pairs(count, split="test", seed=0)
