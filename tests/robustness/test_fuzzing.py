"""Random input, always the same: it is used as it should be, or refused in words; never a crash, never silently wrong."""

import contextlib
import io
import string

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reluformer.commands import main as cli
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_text import read_recipe_text
from reluformer.training import training as training_module
from reluformer.training.data.corpora import read_parallel_files

from ..conftest import VOCABULARY, tiny_model

pytestmark = pytest.mark.slow

# Files are written anew by every example, so that one folder serves all.
FUZZING = settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Bytes that mean something to a reader of lines, of gzip or of UTF-8, beside any others.
PIECES = st.sampled_from([b"a", b" ", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xc3\xa4", b"\xef\xbb\xbf", b"\x1f\x8b"])
CONTENT = st.lists(PIECES | st.binary(max_size=6), max_size=12).map(b"".join)


def usable_lines(content: bytes) -> list[str | None]:
    """The lines of a plain file by the definition of `read_parallel_files`, None for one that cannot be used."""
    pieces = content.split(b"\n")
    if pieces[-1] == b"":
        pieces.pop()
    if pieces:
        pieces[0] = pieces[0].removeprefix(b"\xef\xbb\xbf")
    lines = []
    for piece in pieces:
        try:
            text = piece.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            text = ""
        lines.append(text if text.strip() else None)
    return lines


@FUZZING
@given(source=CONTENT, target=CONTENT)
def test_random_bytes_are_read_by_the_rules_or_refused(tmp_path, source, target):
    paths = [tmp_path / "source", tmp_path / "target"]
    for path, content in zip(paths, (source, target), strict=True):
        path.write_bytes(content)
    sides = [usable_lines(content) for content in (source, target)]
    # gzip, and what is taken for UTF-16 or UTF-32: a byte order mark, or many NUL bytes
    others = (b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
    plain = not any(
        content.startswith(others) or content.count(0) >= max(4, len(content) // 4) for content in (source, target)
    )
    try:
        pairs, report = read_parallel_files(*paths, name="random")
    except UserError as error:
        assert "\n" not in str(error)
        aligned = len(sides[0]) == len(sides[1])
        assert not (plain and aligned and any(None not in pair for pair in zip(*sides, strict=True)))
        return
    assert plain
    expected = [pair for pair in zip(*sides, strict=True) if None not in pair]
    assert list(zip(pairs["source"], pairs["target"], strict=True)) == expected
    assert report.read == len(sides[0]) == report.kept + sum(report.skipped.values())


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(width=16) | st.text(string.printable, max_size=6)
KEYS = st.sampled_from(["name", "data", "demo", "train", "source", "model", "training", "max_steps", "base", "d_model"])
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(string.printable, max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
YAML_PIECES = st.sampled_from(
    [
        "name: ",
        "data: ",
        "{",
        "}",
        "[",
        "]",
        "- ",
        "&a ",
        "*a",
        "!!python/name:os.system ",
        "\n",
        "  ",
        "'",
        "x",
        "<<: ",
        "? ",
    ]
)


@FUZZING
@given(text=DOCUMENTS.map(yaml.safe_dump) | st.lists(YAML_PIECES, max_size=12).map("".join))
def test_random_documents_are_plain_mappings_or_refused(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8", newline="\n")
    with contextlib.suppress(UserError):
        accepted = read_recipe_text(path)
        # what is accepted, YAML's safe loader reads: there is no tag in it that could name anything
        assert isinstance(yaml.safe_load(accepted), dict)


@settings(FUZZING, max_examples=25)
@given(document=st.dictionaries(KEYS, DOCUMENTS, max_size=4))
def test_random_recipes_are_one_line(tmp_path, document, monkeypatch):
    monkeypatch.setattr(training_module, "train", lambda *arguments, **options: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "random.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert_quiet(["train", "--config", "random.yaml"])


WORDS = st.sampled_from(
    [
        *("train", "evaluate", "translate", "analyze", "convert", "card"),
        *("--config", "--run", "--model", "--input", "--output", "--what", "--from", "--to", "--size", "--jobs", "--seed"),
        *("--num_beams", "--device", "--text", "--split", "--only", "--list", "--help", "--version", "--samples"),
        *("--training.max_steps", "--model.d_model", "--data.demo.train", "--name", "--print_config", "--overwrite"),
        *("anisotropy", "smoke", "t1", "nowhere", "0", "-1", "1e9", "nan", "", "-", "--", "=", "é", "\udcff", "{", "[1", "!!x"),
    ]
)  # fmt: skip


@FUZZING
@given(arguments=st.lists(WORDS, max_size=5))
def test_random_arguments_end_with_one_line_or_well(tmp_path, arguments, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_module, "train", lambda *arguments, **options: None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"eins\n")))
    assert_quiet(arguments)


def assert_quiet(arguments: list[str]) -> None:
    """A command ends with status 0, or with status 2 and one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(arguments)
    assert status in (0, 2), (arguments, err.getvalue())
    if status:
        assert err.getvalue().count("reluformer: error: ") == 1, (arguments, err.getvalue())
        assert err.getvalue().endswith("\n") and "Traceback" not in err.getvalue()


MODELS = {name: tiny_model(preset=name) for name in ("reluformer", "vanilla")}
MODELS["reluformer eager"] = tiny_model(attn_implementation="eager")


@pytest.mark.parametrize("name", MODELS)
@settings(FUZZING, max_examples=20)
@given(data=st.data())
def test_every_row_of_a_random_batch_is_the_row_alone(name, data):
    """Whatever the masks hide: real positions are finite and do not depend on the other rows, nor on what is hidden."""
    model = MODELS[name]
    batch, source_length, target_length = (data.draw(st.integers(1, most)) for most in (3, 6, 5))
    ids = st.integers(0, VOCABULARY - 1)
    source, target = (
        torch.tensor([[data.draw(ids) for _ in range(length)] for _ in range(batch)])
        for length in (source_length, target_length)
    )
    mask = torch.tensor([[data.draw(st.integers(0, 1)) for _ in range(source_length)] for _ in range(batch)])
    mask = mask.to(data.draw(st.sampled_from([torch.long, torch.bool, torch.float32, torch.int32])))
    with torch.no_grad():
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        hidden = torch.where(mask.bool(), source, (source + 7) % VOCABULARY)
        changed = model(input_ids=hidden, attention_mask=mask, decoder_input_ids=target).logits
        assert logits.isfinite().all()
        torch.testing.assert_close(changed, logits)
        for row in range(batch):
            visible = mask[row].bool()
            if not visible.any():
                continue  # alone, nothing would be left of it
            alone = model(input_ids=source[row : row + 1, visible], decoder_input_ids=target[row : row + 1]).logits
            torch.testing.assert_close(logits[row : row + 1], alone, rtol=1e-4, atol=1e-4)


SHAPES = st.lists(st.integers(0, 8), max_size=4).map(tuple)
DTYPES = st.sampled_from([torch.long, torch.bool, torch.float32, torch.int32])


@settings(FUZZING, max_examples=80)
@given(shapes=st.tuples(*[SHAPES] * 3), dtypes=st.tuples(*[DTYPES] * 3), value=st.integers(-2, VOCABULARY + 2))
def test_random_shapes_and_dtypes_are_computed_or_refused(shapes, dtypes, value):
    source, mask, labels = (torch.full(shape, 1).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    if source.dtype == torch.long:
        source = torch.full_like(source, value)
    try:
        with torch.no_grad():
            output = MODELS["reluformer"](input_ids=source, attention_mask=mask, labels=labels)
    except (ValueError, IndexError) as error:
        named = (
            "input_ids",
            "labels",
            "attention mask",
            "four-dimensional mask",
            "number of sequences",
            "max_position_embeddings",
        )
        assert any(name in str(error) for name in named), error
        return
    assert output.logits.shape == (*labels.shape, VOCABULARY)
    assert output.loss.isfinite()
