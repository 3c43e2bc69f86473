"""Tables as people have them: every pair is kept, or counted with its place; what makes the whole table doubtful is refused."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe import DataConfig, TablesConfig
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.data.columns import PairColumns
from reluformer.training.data.corpora import read_parallel_files
from reluformer.training.data.splits import has_split, load_split
from reluformer.training.data.tables import read_tables
from reluformer.training.data.text_lines import read_lines

COLUMNS = PairColumns("de", "en")
PAIRS = [("eins", "one"), ('zwei "2"', "two, or 2"), ("null", "NA"), ("42", "42")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def gzip_bytes(content: bytes) -> bytes:
    """Without the time of day, which would stand in the names of the tests and differ between two workers."""
    return gzip.compress(content, mtime=0)


def zstd(content: bytes) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as packed:
        packed.write(content)
    return stream.getvalue().to_pybytes()


def table(tmp_path, name: str, content: bytes | str):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(*paths, columns=COLUMNS, **options):
    pairs, report = read_tables(paths, columns, name="train", **options)
    return [(row["source"], row["target"]) for row in pairs], report


CSV = 'id,de,en\n1,eins,one\n2,"zwei ""2""","two, or 2"\n3,null,NA\n4,42,42\n'
TSV = 'id\tde\ten\n1\teins\tone\n2\tzwei "2"\ttwo, or 2\n3\tnull\tNA\n4\t42\t42\n'
OBJECTS = [{"id": 1, "de": source, "en": target} for source, target in PAIRS]
JSONL = "".join(json.dumps(row) + "\n" for row in OBJECTS)
NESTED = "".join(json.dumps({"translation": row}) + "\n" for row in OBJECTS)


@pytest.mark.parametrize("pack", [None, gzip_bytes, zstd], ids=["plain", "gzip", "zstd"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.CSV", "\ufeff" + CSV.replace("\n", "\r\n")),
        ("a.tsv", TSV),
        ("a.jsonl", JSONL),
        ("a.json", JSONL),
        ("a.json", json.dumps(OBJECTS, indent=1)),
        ("a.jsonl", NESTED),
    ],
    ids=["csv", "csv of Windows", "tsv", "jsonl", "json lines", "json list", "nested"],
)
def test_every_kind_of_table_plain_and_packed(tmp_path, name, content, pack):
    """The words "null" and "NA" are words, numbers are texts, and in TSV a quotation mark is a character."""
    suffix = {None: "", gzip_bytes: ".gz", zstd: ".zst"}[pack]
    path = table(tmp_path, name + suffix, content if pack is None else pack(content.encode()))
    pairs, report = read(path)
    assert pairs == PAIRS and (report.read, report.kept, report.skipped) == (4, 4, {})


@pytest.mark.parametrize("pack", [gzip_bytes, zstd], ids=["gzip", "zstd"])
def test_packed_text_whatever_its_name(tmp_path, pack):
    lines = b"\xef\xbb\xbfeins\r\nzwei\n"
    paths = [table(tmp_path, name, pack(lines)) for name in ("a.txt", "b.txt")]
    pairs, _ = read_parallel_files(*paths, name="train")
    assert list(pairs["source"]) == ["eins", "zwei"] == read_lines(str(paths[0]))


def test_parquet_with_plain_nested_and_dictionary_columns(tmp_path):
    rows = pa.table({"id": [1, 2, 3, 4], "translation": [{"de": source, "en": target} for source, target in PAIRS]})
    pq.write_table(rows, tmp_path / "nested.parquet")
    assert read(tmp_path / "nested.parquet")[0] == PAIRS
    columns = {
        "german": pa.array([source for source, _ in PAIRS]).dictionary_encode(),
        "english": pa.array([target for _, target in PAIRS], pa.large_string()),
    }
    pq.write_table(pa.table(columns), tmp_path / "plain.parquet")
    named = PairColumns("de", "en", "german", "english")
    assert read(tmp_path / "plain.parquet", columns=named)[0] == PAIRS
    broken = pa.array([b"eins", b"f\xfcnf", None]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"de": broken, "en": ["one", "five", "three"]}), tmp_path / "latin1.parquet")
    pairs, report = read(tmp_path / "latin1.parquet")
    assert pairs == [("eins", "one")] and report.skipped == {"source is not UTF-8": 1, "source is not text": 1}
    assert report.first["source is not UTF-8"] == f"{tmp_path}/latin1.parquet: row 1"


def test_a_quotation_may_go_over_lines(tmp_path):
    path = table(tmp_path, "a.csv", 'de,en\n"eins\nzwei","one\ntwo"\ndrei,\n')
    pairs, report = read(path)
    assert pairs == [("eins\nzwei", "one\ntwo")] and report.first == {"target empty": f"{path}:5"}


def test_a_long_field_is_read(tmp_path):
    """A whole document in a cell: the limit of `csv` is 131,072 characters."""
    long = "wort " * 40_000
    pairs, report = read(table(tmp_path, "a.csv", f'de,en\n"{long}",one\nzwei,two\n'))
    assert pairs == [(long, "one"), ("zwei", "two")] and report.skipped == {}


def test_bad_rows_are_counted_and_the_good_ones_kept(tmp_path):
    content = b'de,en\neins,one\nzwei\nf\xfcnf,five\n"drei" 3,three\n\nvier,four,4\n,\nsechs,six\n'
    path = table(tmp_path, "a.csv", content)
    pairs, report = read(path)
    assert pairs == [("eins", "one"), ("sechs", "six")]
    fields = "number of fields is not that of the first line"
    assert {reason: report.first[reason] for reason in report.skipped} == {
        fields: f"{path}:3",
        "source is not UTF-8": f"{path}:4",
        "row cannot be read (',' expected after '\"')": f"{path}:5",
        "both sides empty": f"{path}:6",
    }
    assert report.skipped[fields] == report.skipped["both sides empty"] == 2
    assert report.read == 8 == report.kept + sum(report.skipped.values())


def test_bad_lines_of_json_are_counted(tmp_path):
    lines = [
        '{"de": "eins", "en": "one"}', "{", "", '["de"]', '{"en": "two"}', '{"de": 3, "en": "three"}', "[" * 100_000,
        '{"de": "\\ud800", "en": "x"}',
    ]  # fmt: skip
    path = table(tmp_path, "a.jsonl", "\n".join(lines).encode() + b'\n{"de": "f\xfc", "en": "f"}\n')
    pairs, report = read(path)
    assert pairs == [("eins", "one")]
    assert report.skipped == {
        "line is not JSON": 2, "line is empty": 1, "no JSON object": 1, "source is not text": 2,
        "source is not UTF-8": 1, "line is not UTF-8": 1,
    }  # fmt: skip
    assert report.first["source is not text"] == f"{path}:5"


def test_several_tables_one_after_the_other_and_from_the_cache(tmp_path):
    paths = [table(tmp_path, "a.csv", CSV), table(tmp_path, "b.jsonl", JSONL)]
    pairs, report = read(*paths)
    assert pairs == PAIRS * 2 and not report.from_cache
    again, report = read(*paths)
    assert again == pairs and report.from_cache
    assert not read(*paths, columns=PairColumns("en", "de"))[1].from_cache


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "german,en\na,b\n", "no column 'translation.de' or 'de'; there are: german, en; set data.tables.source_column"),
        ("a.jsonl", '{"translation": {"de": "a"}}\n', "'en'; there are: translation.de; set data.tables.target_column"),
        ("a.csv", "de,en,de\na,b,c\n", "2 columns are named 'de'"),
        ("a.csv", "de;en\na;b\n", "its first line is 'de;en', without a ',' between the names of columns; set data.tables."),
        ("a.csv", "", "its first line is empty; expected one that names the columns"),
        ("a.csv", 'de,en\n"a,b\nc,d\ne,f\n', "a.csv:2: a quotation that begins in this row does not end as it should by line 4"),
        ("a.csv", 'de,en\na,b\nc,"d\n', "a.csv:3: a quotation that begins in this row does not end as it should by line 3"),
        ("a.csv", 'de,en\na,b\nc,"d', "a.csv:3: a quotation that begins in this row does not end as it should by line 3"),
        ("a.csv", "de,en\na,b\n".encode("utf-16"), "a.csv: is UTF-16 by its byte order mark"),
        ("a.csv", b"PK\3\4 a sheet of Excel", "is zip data; expected plain text, gzip or zstd: unpack it"),
        ("a.csv", b"\xfd7zXZ\0", "is xz data"),
        ("a.csv.zst", b"de,en\n", "named .zst, but its content is not zstd; rename it or compress it"),
        ("a.csv.zst", gzip_bytes(b"de,en\n"), "named .zst, but its content is gzip; rename it"),
        ("a.csv.gz", gzip_bytes(CSV.encode())[:-12], "broken gzip data after line"),
        ("a.csv.zst", zstd(CSV.encode() * 999)[:-9], "broken zstd data after line"),
        ("a.jsonl", "de,en\na,b\n", "expected a JSON object with the columns on each line, found none in the first 2 lines"),
        ("a.json", '[{"de": "a"},\n{"de": }]', "a.json:2: is no JSON: Expecting value; expected a list of objects"),
        ("a.parquet", b"PAR1 and no more", "a.parquet: cannot be read as Parquet ("),
        ("a.xlsx", b"PK\3\4", "expected a table, a file ending in .csv, .tsv, .jsonl, .json, .parquet"),
    ],
)  # fmt: skip
def test_a_doubtful_table_is_refused_in_one_line(tmp_path, name, content, says):
    with pytest.raises(UserError) as error:
        read(table(tmp_path, name, content))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_another_delimiter(tmp_path):
    path = table(tmp_path, "a.csv", CSV.replace("two, or 2", "two; or 2").replace('",', '";').replace(",", ";"))
    assert read(path, delimiter=";")[0][1] == ('zwei "2"', "two; or 2")


def recipe(tables: dict):
    options = [
        "--name",
        "x",
        "--training.use_cpu",
        "true",
        "--data.source_language",
        "de",
        "--data.target_language",
        "en",
    ]
    return parse_recipe(
        [*options, *(part for key, value in tables.items() for part in (f"--data.tables.{key}", value))]
    )


def test_a_recipe_names_tables(tmp_path):
    train, test = table(tmp_path, "a.csv", CSV), table(tmp_path, "b.jsonl", JSONL)
    data = recipe({"train": f"[{train},{test}]", "test": str(test), "source_column": "de"}).data
    assert [has_split(data, split) for split in ("train", "validation", "test")] == [True, False, True]
    assert load_split(data, "train")[1].summary() == "train: 8 of 8 pairs kept"
    with pytest.raises(
        UserError, match=r"no validation split; give data\.tables\.validation \(splits it has: train, test\)"
    ):
        load_split(data, "validation")
    for wrong, says in (
        ({"train": "[]"}, "names no file"),
        ({"train": "a.csv", "delimiter": "::"}, "give one character"),
        ({"train": "a.jsonl", "delimiter": ";"}, "would have no effect"),
    ):
        with pytest.raises(UserError, match=says):
            recipe(wrong)


def test_documents_from_a_column(tmp_path):
    path = table(tmp_path, "a.csv", "doc,de,en\nd0,a,b\nd0,c,\nd1,e,f\n")
    pairs, _ = read_tables([path], PairColumns("de", "en", document="doc"), name="train")
    assert list(pairs["document"]) == ["d0", "d1"]
    path.write_text("doc,de,en\nd0,a,b\n,c,d\n")
    with pytest.raises(UserError, match=rf"train: {path}:3: names no document"):
        read_tables([path], PairColumns("de", "en", document="doc"), name="train")


def test_a_missing_table_names_the_homepage(tmp_path):
    tables = TablesConfig(train=str(tmp_path / "nowhere.csv"))
    data = DataConfig(source_language="de", target_language="en", tables=tables, homepage="https://example.org")
    with pytest.raises(
        UserError, match=r"file not found: \S+nowhere\.csv; the corpus is to be had at https://example\.org"
    ):
        load_split(data, "train")


def test_a_quotation_mark_at_the_beginning_of_a_cell_of_tsv_is_a_character(tmp_path):
    assert read(table(tmp_path, "a.tsv", 'de\ten\n"eins\tone\nzwei"\ttwo\n'))[0] == [('"eins', "one"), ('zwei"', "two")]


def test_a_carriage_return_within_a_line_is_a_character_of_tsv_and_a_bad_row_of_csv(tmp_path):
    """As in plain text, only "\\n" ends a line."""
    rows = ["ei\rns{0}one", "zwei{0}two", "\rdrei{0}three\r\r"]
    pairs, report = read(table(tmp_path, "a.tsv", "\n".join(["de{0}en\r", *rows, ""]).replace("{0}", "\t")))
    assert pairs == [("ei\rns", "one"), ("zwei", "two"), ("\rdrei", "three")] and report.skipped == {}
    path = table(tmp_path, "a.csv", "\n".join(["de{0}en", *rows, ""]).replace("{0}", ","))
    pairs, report = read(path)
    assert pairs == [("zwei", "two")]
    assert report.skipped == {"row cannot be read (carriage return outside of a quotation)": 2}
    with pytest.raises(
        UserError, match=r"old\.csv:1: row cannot be read \(carriage return .*expected a line that names"
    ):
        read(table(tmp_path, "old.csv", "de,en\reins,one\r"))


@pytest.mark.parametrize("head", ["\n[", "  \n\r\n [\n", "\ufeff\n\n["])
def test_a_list_of_json_may_begin_after_empty_lines(tmp_path, head):
    """Read by lines, all rows but the last would be lost to the commas behind them."""
    pairs, report = read(table(tmp_path, "a.json", head + ",\n".join(map(json.dumps, OBJECTS)) + "\n]\n"))
    assert pairs == PAIRS and report.skipped == {}
    with pytest.raises(UserError, match=r"b\.json:4: is no JSON"):
        read(table(tmp_path, "b.json", '\n\n[{"de": "a",\n"en": }]'))
    with pytest.raises(UserError, match=r"c\.json: is no JSON: Exceeds the limit"):
        read(table(tmp_path, "c.json", f'[{{"de": {"9" * 5_000}}}]'))


def test_a_repeated_column_of_parquet_is_refused_where_it_is_wanted(tmp_path):
    columns = [pa.array(["eins"]), pa.array(["one"]), pa.array(["uno"])]
    pq.write_table(pa.Table.from_arrays(columns, ["de", "en", "en"]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: 2 columns are named 'en'; give each its own name"):
        read(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_arrays(columns + columns[2:], ["de", "en", "it", "it"]), tmp_path / "b.parquet")
    assert read(tmp_path / "b.parquet")[0] == [("eins", "one")]


def test_a_column_whose_name_holds_a_dot_comes_before_the_field_of_another(tmp_path):
    path = table(
        tmp_path,
        "a.jsonl",
        '{"text.de": "eins", "text": {"de": "uno"}, "en": "one"}\n{"text": {"de": "zwei"}, "en": "two"}\n',
    )
    assert read(path, columns=PairColumns("de", "en", "text.de", "en"))[0] == [("eins", "one"), ("zwei", "two")]
