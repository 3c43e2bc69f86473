"""Packing of documents: nothing lost, nothing mixed, nothing too long, nothing that would still have fitted."""

import json
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.training.data.corpus import load_split
from reluformer.training.data.documents import greedy_spans, pack_documents, pack_split
from reluformer.training.data.encoding import encode_pairs
from reluformer.training.data.tokenization import train_tokenizer
from reluformer.training.run.preparation import prepare_corpus
from reluformer.training.scoring.evaluation import evaluate, read_translations
from reluformer.training.scoring.metrics import score_documents
from reluformer.translating.translation import Translator

from ..conftest import RECIPE

LANGUAGES = {"source_language": "it", "target_language": "en"}
WORDS = [("uno", "one"), ("due", "two"), ("tre", "three"), ("quattro", "four"), ("cinque", "five"), ("sei", "six")]


def corpus(documents: int = 3, sentences: int = 12, seed: int = 0) -> datasets.Dataset:
    """Documents of sentences of one to five number words and a full stop."""
    generator = np.random.default_rng(seed)
    rows = []
    for document in range(documents):
        for _ in range(sentences):
            words = [WORDS[i] for i in generator.integers(0, len(WORDS), generator.integers(1, 6))]
            source, target = (" ".join([*side, "."]) for side in zip(*words, strict=True))
            rows.append({"source": source, "target": target, "document": f"d{document}"})
    return datasets.Dataset.from_list(rows)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(corpus(), vocab_size=330, lowercase=False, moses=False, max_length=64, **LANGUAGES)


lengths = st.sampled_from([0, 1, 1, 2, 2, 3, 9])
seldom = st.sampled_from([False] * 5 + [True])
sentence = st.tuples(lengths, lengths, seldom, seldom)  # source, target, left out, begins a document


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(sentence, min_size=1, max_size=30), st.integers(2, 9))
def test_greedy_packing(rows, limit):
    source, target, left_out, begins = (list(column) for column in zip(*rows, strict=True))
    documents = np.cumsum(begins).tolist()
    spans = greedy_spans(source, target, documents, left_out, limits=[limit])
    packed = [index for start, stop in spans for index in range(start, stop)]
    assert packed == [index for index in range(len(rows)) if not left_out[index]]  # once each, in order
    for start, stop in spans:
        assert len(set(documents[start:stop])) == 1
        longest = max(sum(source[start:stop]), sum(target[start:stop])) + 1
        assert longest <= limit or stop == start + 1  # longer only where one sentence alone is
        if stop < len(rows) and not left_out[stop] and documents[stop] == documents[start]:
            assert max(sum(source[start : stop + 1]), sum(target[start : stop + 1])) + 1 > limit  # no more fitted


@pytest.mark.parametrize("limit", [16, 400])
def test_packed_texts_are_those_of_their_sentences_and_every_count_is_reported(tokenizer, limit):
    sentences = corpus()
    packed = pack_documents(sentences, tokenizer, max_tokens=limit, too_long="skip", name="train")
    position = 0
    for row in packed.pairs:
        assert row["first"] == position
        rows = sentences.select(range(position, position + row["sentences"]))
        position += row["sentences"]
        assert set(rows["document"]) == {row["document"]}
        assert (row["source"], row["target"]) == (" ".join(rows["source"]), " ".join(rows["target"]))
    assert position == len(sentences)
    report = packed.report
    assert (report.name, report.documents, report.read, report.kept) == ("train", 3, 36, 36)
    assert (report.packed, report.kept_too_long, report.skipped) == (len(packed.pairs), 0, {})
    assert f"36 of 36 sentences of 3 documents in {report.packed} packed documents" in report.summary()
    encoded, tokens = encode_pairs(packed.pairs, tokenizer, max_length=limit, name="train")
    assert tokens.skipped == {}  # joined, sentences have as many tokens as one by one
    assert tokenizer.decode(encoded[0]["labels"], skip_special_tokens=True) == packed.pairs[0]["target"]


def test_a_sentence_that_alone_is_too_long_is_left_out_or_kept(tokenizer):
    """The third of six is longer than 8 tokens on its target side."""
    source = ["uno .", "due .", "tre .", "sei .", "uno .", "due ."]
    target = ["one .", "two .", "three " * 9 + ".", "six .", "one .", "two ."]
    sentences = datasets.Dataset.from_dict({"source": source, "target": target, "document": ["a"] * 6})
    skipped, kept = (
        pack_documents(sentences, tokenizer, max_tokens=8, too_long=choice, name="test") for choice in ("skip", "keep")
    )
    # What stands before and after the sentence is never put together.
    assert list(skipped.pairs["source"]) == ["uno . due .", "sei . uno . due ."]
    assert list(kept.pairs["source"]) == ["uno . due .", "tre .", "sei . uno . due ."]
    assert skipped.report.skipped == {"longer than 8 tokens": 1} and skipped.report.kept == 5
    assert skipped.report.first["longer than 8 tokens"] == 3
    assert (kept.report.kept_too_long, kept.report.kept) == (1, 6)
    assert "kept alone: 1" in kept.report.summary() and "skipped 1" in skipped.report.summary()
    assert skipped.references == kept.references == {"a": " ".join(target)}


def test_limits_that_are_mixed_get_as_many_tokens_each():
    tokens = np.random.default_rng(0).integers(1, 6, 600)
    spans = greedy_spans(tokens.tolist(), tokens.tolist(), [0] * 600, [False] * 600, limits=[1, 20, 60])
    assert [index for span in spans for index in range(*span)] == list(range(600))
    sizes = np.array([tokens[slice(*span)].sum() for span in spans])
    shares = [sizes[chosen].sum() / sizes.sum() for chosen in (sizes <= 5, (sizes > 5) & (sizes < 20), sizes >= 20)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.03) and sizes.max() < 60


@pytest.mark.parametrize("first", [(1, 9), (9, 1)])
def test_the_longer_side_counts_for_the_share_of_a_limit(first):
    """One sentence of 9 tokens alone, then 19 of one token: 11 more stand alone before these have got as many
    tokens."""
    sides = ([tokens] + [1] * 40 for tokens in first)
    spans = greedy_spans(*sides, ["a"] * 41, [False] * 41, limits=[1, 20])
    assert spans == [(0, 1), (1, 20), *((start, start + 1) for start in range(20, 31)), (31, 41)]


@pytest.mark.parametrize("longer", [0, 1])
def test_either_side_fills_a_packed_document(longer):
    sides = [[1] * 7, [1] * 7]
    sides[longer] = [3] * 7
    assert greedy_spans(*sides, ["a"] * 7, [False] * 7, limits=[10]) == [(0, 3), (3, 6), (6, 7)]


def test_a_sentence_without_tokens_is_counted(tokenizer):
    rows = {"source": ["uno .", "\u2581", "due ."], "target": ["one .", "two .", "two ."], "document": ["a"] * 3}
    packed = pack_documents(datasets.Dataset.from_dict(rows), tokenizer, max_tokens=40, too_long="keep", name="train")
    assert packed.report.skipped == {"without any token": 1} and packed.report.kept_too_long == 0
    assert list(packed.pairs["source"]) == ["uno .", "due ."]


def test_what_cannot_be_packed_is_refused(tokenizer):
    with pytest.raises(UserError, match=r"nothing to pack: .*36 × longer than 2 tokens"):
        pack_documents(corpus(), tokenizer, max_tokens=2, too_long="skip", name="train")


class Perfect(SimpleNamespace):
    """In place of a translator: it knows the references."""

    def __call__(self, texts, progress=False):
        return [self.known[text] for text in texts]


def test_the_common_unit_is_the_same_at_every_length(tokenizer, tmp_path):
    sentences = corpus(documents=4, sentences=30)
    units, packed_documents = set(), set()
    for limit in (16, 300):
        packed = pack_documents(sentences, tokenizer, max_tokens=limit, too_long="keep", name="test documents")
        known = dict(zip(packed.pairs["source"], packed.pairs["target"], strict=True))
        translator = Perfect(known=known, model=SimpleNamespace(device="cpu"), decoding={}, shortened=[])
        result = evaluate(translator, packed, tmp_path, "test", record={})
        assert [result[name] for name in ("bleu", "document_bleu", "document_chrf")] == pytest.approx([100] * 3)
        assert "|tok:13a|" in result["document_bleu_signature"]
        assert result["packing"]["max_tokens"] == limit and result["documents"] == 4
        units.add(tuple(packed.references.items()))
        packed_documents.add(result["sentences"])
    assert len(units) == 1 and len(packed_documents) == 2


def test_the_common_unit_counts_what_was_not_translated():
    references = {"a": "one two three four five . six seven eight nine ten .", "b": "four three two one zero ."}
    perfect = ["one two three four five .", "six seven eight nine ten .", "four three two one zero ."]
    assert score_documents(perfect, ["a", "a", "b"], references)["document_bleu"] == pytest.approx(100)
    for translated, names in (([perfect[0], perfect[2]], ["a", "b"]), (perfect[:2], ["a", "a"])):
        scores = score_documents(translated, names, references)
        assert scores["document_bleu"] < 75 and scores["documents"] == 2


def write_files(folder, split: str, sentences: datasets.Dataset) -> dict[str, str]:
    paths = {}
    for key, column in (("source", "source"), ("target", "target"), ("documents", "document")):
        paths[key] = str(folder / f"{split}.{column}")
        (folder / f"{split}.{column}").write_text("".join(f"{text}\n" for text in sentences[column]), encoding="utf-8")
    return paths


@pytest.fixture
def recipe_file(tmp_path):
    """Path of a recipe that trains on packed documents in a second or two."""
    train = write_files(tmp_path, "train", corpus(documents=6))
    held_out = write_files(tmp_path, "held_out", corpus(documents=4, seed=1))
    recipe = yaml.safe_load(RECIPE.format(folder=tmp_path / "run"))
    recipe["data"] = {
        **LANGUAGES,
        "max_length": 32,
        "packing": {},
        "train": train,
        "validation": {**held_out, "only": ["d0", "d1"]},
        "test": {**held_out, "only": ["d2", "d3"]},
    }
    recipe["model"]["max_position_embeddings"] = 32
    recipe["evaluation"]["headline"] = "document_bleu"
    recipe["training"] |= {"max_steps": 4, "eval_steps": 4}
    path = tmp_path / "documents.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def test_training_and_evaluation_of_documents(recipe_file, tmp_path, capsys):
    assert cli.main(["train", "--config", str(recipe_file)]) == 0
    out = capsys.readouterr().out
    assert "of 6 documents in" in out and "BLEU over 2 whole documents" in out
    assert out.strip().splitlines()[-1].endswith("on 2 held-out whole documents (test)")
    folder = tmp_path / "run"
    reports = json.loads((folder / "corpus_report.json").read_text(encoding="utf-8"))
    packings = {report["name"]: report for report in reports if "packed" in report}
    assert [(report["max_tokens"], report["documents"]) for report in packings.values()] == [(32, 6), (32, 2), (32, 2)]
    assert Translator.from_pretrained(folder, device="cpu").options.split == "none"
    assert "- `Translator` gives the model a text as a whole" in (folder / "README.md").read_text(encoding="utf-8")
    assert next(report for report in reports if report["name"] == "train tokens")["skipped"] == {}
    result = json.loads((folder / "evaluation.test.json").read_text(encoding="utf-8"))
    assert result["packing"] == packings["test documents"]
    assert (result["documents"], result["sentences"]) == (2, packings["test documents"]["packed"])
    rows = read_translations(folder / "translations.test.tsv")
    assert " ".join(row[2] for row in rows) == " ".join(list(corpus(documents=4, seed=1)["target"])[24:])
    assert f"{len(rows)} packed documents of at most 32 tokens from 2 whole ones" in (folder / "README.md").read_text()
    assert cli.main(["evaluate", "--run", str(folder), "--device", "cpu"]) == 0
    again = json.loads((folder / "evaluation.test.json").read_text(encoding="utf-8"))
    assert all(again[name] == result[name] for name in ("bleu", "document_bleu"))


def test_the_tokenizer_is_the_same_at_every_length(recipe_file):
    limits = (["--data.max_length", str(length), "--model.max_position_embeddings", "64"] for length in (16, 32))
    first, second = (prepare_corpus(parse_recipe(["--config", str(recipe_file), *limit])) for limit in limits)
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    assert len(first.pairs["train"]) > len(second.pairs["train"]) == len(second.encoded["train"])


def test_moses_does_not_go_with_packing(recipe_file):
    with pytest.raises(UserError, match=r"tokenizer\.moses: does not go with data\.packing"):
        parse_recipe(["--config", str(recipe_file), "--tokenizer.moses", "true"])


def test_training_and_evaluation_may_treat_long_sentences_and_lengths_differently(recipe_file, tokenizer):
    data = load_recipe(recipe_file).data
    data.max_length = 6
    train, test = (pack_split(data, split, load_split(data, split)[0], tokenizer) for split in ("train", "test"))
    assert train.report.skipped and not train.report.kept_too_long
    assert test.report.kept_too_long and not test.report.skipped
    data.max_length, data.packing.train_lengths = 32, [1]
    train, test = (pack_split(data, split, load_split(data, split)[0], tokenizer) for split in ("train", "test"))
    assert max(train.pairs["sentences"]) == 1 < max(test.pairs["sentences"])
