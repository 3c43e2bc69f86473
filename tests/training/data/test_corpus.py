"""Corpora: a bad row never loses a good one, and every skip is counted with the place of the first."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reluformer.commands.translate import read_lines
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig, DatasetConfig, ParallelFiles
from reluformer.training.data import corpus
from reluformer.training.data.corpus import has_split, load_split, read_parallel_files
from reluformer.translating.readers import COMPRESSED_SUFFIXES

from ...translating.test_readers import compressed

LANGUAGES = {"source_language": "de", "target_language": "en"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def written(tmp_path, name: str, content: bytes | str):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def parallel(tmp_path, source, target, **options):
    paths = [written(tmp_path, f"train.{side}", text) for side, text in (("de", source), ("en", target))]
    return texts(*read_parallel_files(*paths, name="train", **options))


def texts(pairs, report):
    assert report.read == report.kept + sum(report.skipped.values()) and report.kept == len(pairs)
    return [(row["source"], row["target"]) for row in pairs], report


def data_set(path, split="train", languages=LANGUAGES, **given):
    return load_split(DataConfig(**languages, dataset=DatasetConfig(path=str(path), train=split, **given)), "train")


def table(path, kind="csv", **given):
    return texts(*data_set(kind, files={"train": str(path)}, **given))


@pytest.mark.parametrize("suffix", ["", *COMPRESSED_SUFFIXES])
def test_only_a_line_feed_ends_a_line_of_text(tmp_path, suffix):
    """A lone carriage return, or what Unicode calls a line separator, would put the two sides out of step."""
    odd = ["a\u2028b", "c\u0085d", "e\x0bf\x0cg\x1ch", "i\rj", "k"]
    source = ("\ufeff" + "\r\n".join(odd)).encode()
    path = written(tmp_path, f"train.de{suffix}", compressed(suffix, source))
    pairs, _ = read_parallel_files(path, written(tmp_path, "train.en", "1\n2\n3\n4\n5\n"), name="train")
    assert list(pairs["source"]) == odd == read_lines(str(path))
    assert list(pairs["target"]) == ["1", "2", "3", "4", "5"]


def test_bad_pairs_are_counted_and_the_good_ones_kept_in_step(tmp_path):
    source = b"eins\n\xff\xfe\nzwei\n \n\n\nsechs\nsieben\n"
    target = b"one\nbytes\ntwo\nempty source\n\nboth? no\nsix\n\xc3\n"
    pairs, report = parallel(tmp_path, source, target)
    assert pairs == [("eins", "one"), ("zwei", "two"), ("sechs", "six")]
    assert report.skipped == {
        "source is not UTF-8": 1, "source empty": 2, "both sides empty": 1, "target is not UTF-8": 1,
    }  # fmt: skip
    assert list(report.first.values()) == [2, 4, 5, 8]
    assert report.summary().startswith("train: 3 of 8 pairs kept; skipped 1 × source is not UTF-8 (first: pair 2); 2 ×")


def test_files_of_different_lengths_are_refused_with_both_true_counts(tmp_path):
    with pytest.raises(UserError, match=r"found 250 in \S+train\.de and 3 in \S+train\.en"):
        parallel(tmp_path, "a\n" * 250, "a\n" * 3)
    documents = written(tmp_path, "train.doc", "d\n" * 2)
    with pytest.raises(UserError, match=r"found 3 in \S+train\.de and 3 in \S+train\.en and 2 in \S+train\.doc"):
        parallel(tmp_path, "a\n" * 3, "a\n" * 3, documents=documents)


def test_nothing_left_is_an_error(tmp_path):
    for content in ("", "\n\n"):
        with pytest.raises(UserError, match=r"empty corpus: train: 0 of \d pairs"):
            parallel(tmp_path, content, content)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.de", gzip.compress(b"eins\n", mtime=0), "a.de: holds NUL bytes"),
        ("a.csv.de", b"", "empty corpus"),
        ("a.TSV.gz", b"", "is a table by its name (.tsv); expected text, one sentence a line: give a table as "
                          "data.dataset"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused_in_one_line(tmp_path, name, content, says):
    path = written(tmp_path, name, content)
    with pytest.raises(UserError) as error:
        read_parallel_files(path, path, name="train")
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_split_names_where_the_corpus_is_and_one_file_for_both_sides(tmp_path):
    given = ParallelFiles(source=str(tmp_path / "a"), target=str(tmp_path / "b"))
    data = DataConfig(**LANGUAGES, train=given, homepage="https://example.org")
    with pytest.raises(
        UserError, match=r"/a: no such file; give a text file; the corpus is available at https://example\.org$"
    ):
        load_split(data, "train")
    with pytest.raises(UserError, match=r"no test split \(splits it has: train\); give its files"):
        load_split(data, "test")
    given.target = str(tmp_path / ".." / tmp_path.name / "a")
    with pytest.raises(UserError, match=r"data\.train: source and target are the same file"):
        load_split(data, "train")


def test_a_corpus_is_read_once_until_a_file_changes(tmp_path, monkeypatch):
    pairs, report = parallel(tmp_path, "1\n\n", "one\ntwo\n")
    files = [tmp_path / "train.de", tmp_path / "train.en"]
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "text_lines", lambda _: pytest.fail("read again"))
        assert texts(*read_parallel_files(*files, name="train")) == (pairs, report)
    written(tmp_path, "train.de", "2\n\n")
    assert texts(*read_parallel_files(*files, name="train"))[0] == [("2", "one")]


PAIRS = [("eins", "one"), ('zwei "2"', "two, or 2"), ("null", "NA"), ("42", "42"), ("drei", "three")]
CSV = 'id,de,en\n1,eins,one\n2,"zwei ""2""","two, or 2"\n3,null,NA\n4,42,42\n5,drei,three\n'
TSV = 'id\tde\ten\n1\teins\tone\n2\tzwei "2"\ttwo, or 2\n3\tnull\tNA\n4\t42\t42\n5\tdrei\tthree\n'
OBJECTS = [{"id": 1, "de": source, "en": target} for source, target in PAIRS]
JSONL = "".join(json.dumps(row) + "\n" for row in OBJECTS)


@pytest.mark.parametrize(
    ("kind", "content", "options"),
    [
        ("csv", CSV, {}),
        ("csv", "\ufeff" + CSV.replace("\n", "\r\n"), {}),
        ("csv", TSV, {"sep": "\t", "quoting": 3}),
        ("json", JSONL, {}),
        ("json", "\n" + json.dumps(OBJECTS, indent=1), {}),
        ("json", "".join(json.dumps({"translation": row}) + "\n" for row in OBJECTS), {}),
    ],
)
def test_a_cell_of_a_table_is_text_as_it_stands(tmp_path, kind, content, options):
    """The words "null" and "NA" are words, and numbers are texts."""
    pairs, report = table(written(tmp_path, "a", content), kind, options=options)
    assert pairs == PAIRS and report.skipped == {}
    assert table(written(tmp_path, "b.csv", "de,en\n007,True\n1.50,inf\n"))[0] == [("007", "True"), ("1.50", "inf")]


def test_an_option_of_a_table_takes_the_place_of_ours(tmp_path):
    path = written(tmp_path, "a.csv", "de,en\nNA,one\nzwei,two\n")
    pairs, report = table(path, options={"keep_default_na": True})
    assert pairs == [("zwei", "two")] and report.skipped == {"source is not text": 1}


def test_parquet_with_columns_of_any_name_and_several_compressed_tables(tmp_path):
    rows = [{"german": source, "translation": {"en": target}} for source, target in PAIRS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert table(tmp_path / "a.parquet", "parquet", source_column="german")[0] == PAIRS
    given = DatasetConfig(path="parquet", files={"train": str(tmp_path / "a.parquet")})
    assert [has_split(DataConfig(**LANGUAGES, dataset=given), split) for split in ("train", "test")] == [True, False]
    paths = [str(written(tmp_path, f"{name}.csv.gz", gzip.compress(CSV.encode(), mtime=0))) for name in "ab"]
    assert texts(*data_set("csv", files={"train": paths}))[0] == PAIRS * 2


def test_texts_of_a_table_may_have_line_breaks_and_rows_may_lack_a_side(tmp_path):
    long = "wort\n" * 40_000
    pairs, report = table(written(tmp_path, "a.csv", f'de,en\n"{long}",one\nzwei\n,two\ndrei,three\n'))
    assert pairs == [(long, "one"), ("drei", "three")]
    assert report.skipped == {"target empty": 1, "source empty": 1} and report.first["source empty"] == 3


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "de,en\na,b\nc,d,e\n", "Expected 2 fields in line 3, saw 3"),
        ("a.csv", "de,en\na,b,c\nd,e,f\n", "Length of header or names does not match"),
        ("a.csv", "de,en\n", "no row stands below the header"),
        ("a.json", '{"de": "a", "en": "b"}\n{"de": \n', "JSON parse error"),
        ("a.parquet", b"PAR1 and no more", "cannot be loaded: "),
    ],
)  # fmt: skip
def test_a_doubtful_table_is_refused_in_one_line(tmp_path, name, content, says):
    with pytest.raises(UserError) as error:
        table(written(tmp_path, name, content), name.removeprefix("a."))
    assert says in str(error.value) and "\n" not in str(error.value)


ROWS = [
    {"translation": {"de": "eins", "en": "one"}},
    {"translation": {"de": None, "en": "two"}},
    {"translation": None},
    {"translation": {"de": "vier", "en": " "}},
    {"translation": {"de": "fünf", "en": "five"}},
]


def saved(tmp_path, rows, split="train", **options):
    made = datasets.Dataset.from_list(rows, **options)
    datasets.DatasetDict({split: made}).save_to_disk(str(tmp_path / "saved"))
    return str(tmp_path / "saved")


def test_a_data_set_of_a_folder_of_files_or_saved(tmp_path):
    (tmp_path / "folder").mkdir()
    written(tmp_path, "folder/train.jsonl", "".join(json.dumps(row) + "\n" for row in ROWS))
    for folder in (str(tmp_path / "folder"), saved(tmp_path, ROWS)):
        pairs, report = texts(*data_set(folder))
        assert pairs == [("eins", "one"), ("fünf", "five")]
        assert report.skipped == {"source is not text": 2, "target empty": 1}
        assert report.first == {"source is not text": 2, "target empty": 4}
    for folder in (str(tmp_path / "folder"), saved(tmp_path / "again", ROWS)):
        assert data_set(folder, "train[:20%]")[1].read == 1
        assert data_set(folder, "train[80%:]+train[:20%]")[0]["source"] == ["fünf", "eins"]


def test_a_data_set_of_the_translation_feature(tmp_path):
    features = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
    folder = saved(tmp_path, ROWS[:1], features=features)
    assert data_set(folder)[0][0] == {"source": "eins", "target": "one"}


def test_errors_of_a_data_set_list_what_exists(tmp_path):
    folder = saved(tmp_path, ROWS)
    for path, options, says in (
        (folder, {"source_column": "text"}, r"no column 'text'; there are: translation\.de, translation\.en; set "),
        (folder, {"languages": {**LANGUAGES, "source_language": "en"}}, r"'translation\.en' is both source and target"),
        (folder, {"split": "test"}, "split 'test'\\) cannot be loaded"),
        *(
            (folder, given, "save_to_disk takes no name, files, revision or options")
            for given in ({"files": {"train": "a.csv"}}, {"name": "a"}, {"revision": "a"}, {"options": {"a": 1}})
        ),
        (tmp_path / "nowhere", {}, "cannot be loaded"),
        (written(tmp_path, "a.csv", CSV), {}, r"is a file; give its kind .* and the file as data\.dataset\.files"),
    ):
        with pytest.raises(UserError, match=says):
            data_set(path, **options)


def test_documents_are_named_by_a_file_or_a_column_and_stand_together(tmp_path):
    names = written(tmp_path, "names", "d0 \nd0\n\nd1\n")
    sides = [written(tmp_path, *given) for given in (("de", "a\nb\nc\nd\n"), ("en", "a\n\nc\nd\n"))]
    pairs, report = read_parallel_files(*sides, name="train", documents=names)
    assert list(pairs["document"]) == ["d0", "d1"]
    assert report.first == {"target empty": 2, "no name of a document": 3}
    rows = [{"de": "a", "en": "b", "session": session} for session in (0, 0, 1)]
    pairs, _ = data_set(saved(tmp_path, rows), document_column="session")
    assert list(pairs["document"]) == ["0", "0", "1"]
    path = written(tmp_path, "a.csv", "session,de,en\n0,a,b\n1,c,d\n0,e,f\n")
    with pytest.raises(UserError, match=r"csv train: the sentences of document '0' do not stand together"):
        table(path, document_column="session")


def test_a_recipe_chooses_documents(tmp_path):
    paths = {key: str(written(tmp_path, key, "a\nb\nc\nd\n")) for key in ("source", "target")}
    names = str(written(tmp_path, "names", "d0\nd1\nd1\nd2\n"))
    given = ParallelFiles(**paths, documents=names, only=["d2", "d1"])
    pairs, report = load_split(DataConfig(**LANGUAGES, test=given), "test")
    assert list(pairs["source"]) == ["b", "c", "d"] and report.read == 4
    assert list(report.skipped.values()) == [1] and "`only`" in report.summary()
    given.only = ["d2", "d9"]
    with pytest.raises(UserError, match=r"data\.test\.only: no document 'd9' in "):
        load_split(DataConfig(**LANGUAGES, test=given), "test")
