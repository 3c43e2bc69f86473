"""Corpora: a bad row never loses a good one, and every skip is counted with its place."""

import gzip
import json

import datasets
import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig, ParallelFiles
from reluformer.training.data.columns import PairColumns
from reluformer.training.data.corpora import read_parallel_files
from reluformer.training.data.data_sets import read_dataset
from reluformer.training.data.encoding import encode_pairs, first_encoded_pairs
from reluformer.training.data.splits import load_split
from reluformer.training.tokenization import train_tokenizer

GERMAN, ENGLISH = ["ein hund .", "eine katze ."], ["a dog .", "a cat ."]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def files(tmp_path, source: bytes, target: bytes, compress=False):
    paths = [tmp_path / f"train.{language}{'.gz' if compress else ''}" for language in ("de", "en")]
    for path, content in zip(paths, (source, target), strict=True):
        path.write_bytes(gzip.compress(content) if compress else content)
    return paths


def lines(texts):
    return "".join(f"{text}\n" for text in texts).encode()


def test_a_file_that_is_missing_names_where_the_corpus_is_to_be_had(tmp_path):
    nowhere = ParallelFiles(source=str(tmp_path / "a"), target=str(tmp_path / "b"))
    data = DataConfig(**LANGUAGES, train=nowhere, homepage="https://www.statmt.org/europarl/")
    with pytest.raises(
        UserError, match=r"file not found: \S+/a; the corpus is to be had at https://www\.statmt\.org/europarl/$"
    ):
        load_split(data, "train")


@pytest.mark.parametrize("compress", [False, True])
def test_reads_plain_and_gzip(tmp_path, compress):
    pairs, report = read_parallel_files(*files(tmp_path, lines(GERMAN), lines(ENGLISH), compress), name="train")
    assert list(pairs["source"]) == GERMAN and list(pairs["target"]) == ENGLISH
    assert (report.read, report.kept, report.skipped) == (2, 2, {})


def test_only_a_line_feed_ends_a_line(tmp_path):
    odd = ["a\u2028b", "c\u0085d", "e\x0bf\x0cg\x1ch", "i\rj"]
    pairs, _ = read_parallel_files(*files(tmp_path, lines(odd), lines("1234")), name="train")
    assert list(pairs["source"]) == odd


def test_carriage_return_byte_order_mark_and_missing_last_line_end(tmp_path):
    pairs, _ = read_parallel_files(*files(tmp_path, b"\xef\xbb\xbfein\r\nzwei", b"one\ntwo\n"), name="train")
    assert list(pairs["source"]) == ["ein", "zwei"] and list(pairs["target"]) == ["one", "two"]


def test_bad_pairs_are_counted_and_the_good_ones_kept_in_step(tmp_path):
    source = b"eins\n\xff\xfe\nzwei\n \n\n\nsechs\n"
    target = b"one\nbytes\ntwo\nempty source\n\nboth? no\nsix\n"
    paths = files(tmp_path, source, target)
    pairs, report = read_parallel_files(*paths, name="train")
    assert [(row["source"], row["target"]) for row in pairs] == [("eins", "one"), ("zwei", "two"), ("sechs", "six")]
    assert report.skipped == {"source is not UTF-8": 1, "source empty": 2, "both sides empty": 1}
    assert report.first["source is not UTF-8"] == f"{paths[0]}:2"
    assert report.first["source empty"] == f"{paths[0]}:4"
    assert report.read == report.kept + sum(report.skipped.values()) == 7
    assert "\n" not in report.summary() and f"{paths[0]}:2" in report.summary()


def test_bad_target_is_placed_in_the_target_file(tmp_path):
    paths = files(tmp_path, b"a\nb\nc\n", b"a\n\xc3\n\n")
    _, report = read_parallel_files(*paths, name="train")
    assert report.first == {"target is not UTF-8": f"{paths[1]}:2", "target empty": f"{paths[1]}:3"}


@pytest.mark.parametrize("longer", [0, 1])
def test_different_line_counts_name_both_true_counts(tmp_path, longer):
    contents = [b"a\n" * 3, b"a\n" * 3]
    contents[longer] = b"a\n" * 250
    paths = files(tmp_path, *contents)
    with pytest.raises(UserError) as error:
        read_parallel_files(*paths, name="train")
    for text in ("250", "3 in", *map(str, paths)):
        assert text in str(error.value)


def test_missing_file_and_folder(tmp_path):
    present = tmp_path / "train.de"
    present.write_bytes(b"a\n")
    with pytest.raises(UserError, match=r"not found.*nowhere\.en"):
        read_parallel_files(present, tmp_path / "nowhere.en", name="train")
    with pytest.raises(UserError, match="found a folder"):
        read_parallel_files(present, tmp_path, name="train")


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:40] + b"\0\0\0\0" + data[44:]])
def test_broken_gzip(tmp_path, damage):
    source, target = files(tmp_path, lines(map(str, range(5000))), lines(map(str, range(5000))), compress=True)
    source.write_bytes(damage(source.read_bytes()))
    with pytest.raises(UserError, match=r"train\.de\.gz: broken gzip data after line"):
        read_parallel_files(source, target, name="train")


def test_named_gz_but_plain(tmp_path):
    source, target = files(tmp_path, b"a\n", b"a\n", compress=True)
    source.write_bytes(b"plain text\n")
    with pytest.raises(UserError, match="its content is not gzip"):
        read_parallel_files(source, target, name="train")


def test_nothing_left_is_an_error(tmp_path):
    for content in (b"", b"\n\n"):
        with pytest.raises(UserError, match="empty corpus"):
            read_parallel_files(*files(tmp_path, content, content), name="train")


def test_many_chunks_keep_the_order(tmp_path, monkeypatch):
    monkeypatch.setattr("reluformer.training.data.arrow_cache.ROWS_PER_RECORD_BATCH", 7)
    monkeypatch.setattr("reluformer.training.data.arrow_cache.ROWS_PER_FILE", 21)
    texts = [f"line {number}" for number in range(50)]
    pairs, _ = read_parallel_files(*files(tmp_path, lines(texts), lines(texts)), name="train")
    assert list(pairs["source"]) == list(pairs["target"]) == texts


ROWS = [
    {"translation": {"de": "eins", "en": "one"}},
    {"translation": {"de": None, "en": "two"}},
    {"translation": None},
    {"translation": {"de": "vier", "en": " "}},
    {"translation": {"de": "fünf", "en": "five"}},
]
LANGUAGES = {"source_language": "de", "target_language": "en"}
COLUMNS = PairColumns("de", "en", section="data.dataset")


@pytest.fixture
def folder_of_json(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return str(folder)


def check_rows(pairs, report):
    assert [(row["source"], row["target"]) for row in pairs] == [("eins", "one"), ("fünf", "five")]
    assert report.skipped == {"source is not text": 2, "target empty": 1} and report.read == 5
    assert report.first == {"source is not text": "row 1", "target empty": "row 3"}


def test_data_set_from_a_folder_of_data_files_and_a_saved_one(tmp_path, folder_of_json):
    check_rows(*read_dataset(folder_of_json, None, "train", COLUMNS))
    saved = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"test": saved}).save_to_disk(str(tmp_path / "saved"))
    check_rows(*read_dataset(str(tmp_path / "saved"), None, "test", COLUMNS))


def test_data_set_counts_are_the_same_when_read_again(folder_of_json):
    for _ in range(2):
        check_rows(*read_dataset(folder_of_json, None, "train", COLUMNS))


def test_a_slice_of_a_data_set(folder_of_json):
    assert read_dataset(folder_of_json, None, "train[:20%]", COLUMNS)[1].read == 1


def test_data_set_with_columns_of_any_name(tmp_path):
    saved = datasets.Dataset.from_list([{"de": "eins", "en": "one", "text": {"german": "zwei"}}])
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "saved"))
    pairs, _ = read_dataset(str(tmp_path / "saved"), None, "train", COLUMNS)
    assert pairs[0] == {"source": "eins", "target": "one"}
    nested = PairColumns("de", "en", source="text.german", section="data.dataset")
    assert read_dataset(str(tmp_path / "saved"), None, "train", nested)[0][0] == {"source": "zwei", "target": "one"}
    expected = r"no column 'translation\.fr' or 'fr'; there are: de, en, text\.german; set data\.dataset\.source_column"
    with pytest.raises(UserError, match=expected):
        read_dataset(str(tmp_path / "saved"), None, "train", PairColumns("fr", "en", section="data.dataset"))


def test_data_set_of_the_translation_feature(tmp_path):
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    saved = datasets.Dataset.from_list(ROWS[:1], features=features)
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "saved"))
    pairs, _ = read_dataset(str(tmp_path / "saved"), None, "train", COLUMNS)
    assert pairs[0] == {"source": "eins", "target": "one"}
    with pytest.raises(
        UserError, match=r"no column 'translation\.fr' or 'fr'; there are: translation\.de, translation\.en"
    ):
        read_dataset(str(tmp_path / "saved"), None, "train", PairColumns("de", "fr"))


def test_data_set_errors_list_what_exists(tmp_path, folder_of_json):
    with pytest.raises(UserError, match=r"no column 'text'; there are: translation\.de, translation\.en"):
        read_dataset(folder_of_json, None, "train", PairColumns("de", "en", source="text"))
    with pytest.raises(UserError, match=r"'translation\.en' is both source and target"):
        read_dataset(folder_of_json, None, "train", PairColumns("en", "en"))
    with pytest.raises(UserError, match="cannot be loaded"):
        read_dataset(folder_of_json, None, "nosplit", COLUMNS)
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(UserError, match="no split 'train'; there are: test"):
        read_dataset(str(tmp_path / "saved"), None, "train", COLUMNS)
    with pytest.raises(
        UserError, match=r"is a file; expected the id of a data set, or a folder: .*data\.tables\.train"
    ):
        read_dataset(f"{folder_of_json}/train.jsonl", None, "train", COLUMNS)


@pytest.fixture(scope="module")
def tokenizer():
    pairs = datasets.Dataset.from_dict({"source": GERMAN * 20, "target": ENGLISH * 20})
    return train_tokenizer(pairs, vocab_size=300, lowercase=True, moses=False, max_length=64, **LANGUAGES)


def test_encoded_pairs_end_in_end_of_sentence(tokenizer):
    pairs = datasets.Dataset.from_dict({"source": GERMAN, "target": ENGLISH})
    encoded, report = encode_pairs(pairs, tokenizer, max_length=64, name="train")
    assert set(encoded.column_names) == {"input_ids", "attention_mask", "labels"} and report.kept == 2
    for row, source, target in zip(encoded, GERMAN, ENGLISH, strict=True):
        assert row["input_ids"][-1] == row["labels"][-1] == 2 and row["labels"][0] != 1
        assert row["attention_mask"] == [1] * len(row["input_ids"])
        assert tokenizer.decode(row["input_ids"], skip_special_tokens=True) == source
        assert tokenizer.decode(row["labels"], skip_special_tokens=True) == target


def test_pairs_over_the_limit_are_counted_not_cut(tokenizer):
    texts = ["a dog .", "a dog . " * 9, "a cat .", "a cat ."]
    pairs = datasets.Dataset.from_dict({"source": texts, "target": [*texts[:2], "a cat . " * 9, "a cat ."]})
    limit = len(tokenizer("a dog .")["input_ids"])
    encoded, report = encode_pairs(pairs, tokenizer, max_length=limit, name="train")
    assert len(encoded) == 2 and report.skipped == {f"longer than {limit} tokens": 2}
    assert report.first[f"longer than {limit} tokens"].startswith("pair 1 with ")
    with pytest.raises(UserError, match="empty corpus"):  # `</s>` counts: one less holds none
        encode_pairs(pairs, tokenizer, max_length=limit - 1, name="train")


def test_a_text_of_nothing_but_spaces_is_counted_on_either_side(tokenizer):
    texts = {"source": ["a dog .", "\u2028", "a cat ."], "target": ["a dog .", "a cat .", "\u2028"]}
    encoded, report = encode_pairs(datasets.Dataset.from_dict(texts), tokenizer, max_length=64, name="train")
    assert tokenizer("\u2028")["input_ids"] == [2]
    assert len(encoded) == report.kept == 1 and report.skipped == {"without any token": 2}
    assert first_encoded_pairs(datasets.Dataset.from_dict(texts), tokenizer, max_length=64, at_most=3)["source"][:] == [
        "a dog ."
    ]


def test_a_tokenizer_without_end_of_sentence_is_refused(tokenizer):
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    other = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>")
    other.backend_tokenizer.post_processor = TemplateProcessing(single="$A")
    pairs = datasets.Dataset.from_dict({"source": ["a"], "target": ["b"]})
    with pytest.raises(UserError, match="end every sentence"):
        encode_pairs(pairs, other, max_length=64, name="train")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_text_in_another_encoding_is_refused_by_name_even_from_the_cache(tmp_path, monkeypatch, encoding, compress):
    paths = files(tmp_path, "".join(f"{text}\n" for text in GERMAN).encode(encoding), lines(GERMAN), compress)
    expected = rf"{paths[0].name}: is UTF-\d\d .*; expected UTF-8: convert it, as with `iconv"
    with pytest.raises(UserError, match=expected):
        read_parallel_files(*paths, name="train")
    with monkeypatch.context() as patch:  # a version that took it for text
        patch.setattr("reluformer.training.data.compressed.refuse_other_encodings", lambda *_: None)
        patch.setattr("reluformer.training.data.corpora._check_counts", lambda *_: None)
        read_parallel_files(*paths, name="train")
    with pytest.raises(UserError, match=expected):
        read_parallel_files(*paths, name="train")


@pytest.mark.parametrize(
    "name", ["train.csv", "train.TSV", "train.tsv.gz", "train.csv.zst", "train.jsonl", "train.parquet"]
)
def test_a_table_is_not_taken_for_text(tmp_path, name):
    (tmp_path / name).write_bytes(lines(GERMAN))
    (tmp_path / "train.csv.de").write_bytes(lines(GERMAN))
    with pytest.raises(UserError, match=r"is a table by its name \(\.\w+\).*data\.tables"):
        read_parallel_files(tmp_path / name, tmp_path / "train.csv.de", name="train")


def test_two_files_of_the_same_text_are_named_and_one_file_as_both_sides_is_refused(tmp_path, caplog):
    source, target = files(tmp_path, lines(GERMAN), lines(GERMAN))
    read_parallel_files(source, target, name="train")
    assert f"train: source {source} and target {target} hold the same text" in caplog.text
    (tmp_path / "link").symlink_to(source)
    config = {"source_language": "de", "target_language": "en"}
    for other in (source, tmp_path / "link"):
        data = DataConfig(**config, test=ParallelFiles(source=str(source), target=str(other)))
        with pytest.raises(UserError, match=r"data\.test: source and target are the same file"):
            load_split(data, "test")
