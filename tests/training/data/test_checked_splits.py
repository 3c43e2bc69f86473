"""Every split is checked before the first update; what encoding skips there is neither evaluated nor translated."""

import json
from types import SimpleNamespace

import datasets
import pytest

from reluformer.analysis import attention_maps
from reluformer.commands.train import _draw_attention
from reluformer.configuration.errors import UserError
from reluformer.configuration.recipe_parser import parse_recipe
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.run.preparation import prepare_corpus
from reluformer.training.train import FinishedRun

from ...conftest import demo_tokenizer

LONG = ("eins " * 200, "one")


@pytest.fixture
def arguments(recipe_file, tmp_path):
    """A recipe of files, whose validation and test splits begin with a source longer than the model has positions."""
    given = ["--config", str(recipe_file), "--data.demo", "null"]
    for split, count in (("train", 40), ("validation", 5), ("test", 4)):
        pairs = demo_pairs(count, split=split, seed=0)
        for side, name in enumerate(("source", "target")):
            texts = [*([] if split == "train" else [LONG[side]]), *pairs[name]]
            (tmp_path / f"{split}.{name}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
            given += [f"--data.{split}.{name}", str(tmp_path / f"{split}.{name}")]
    return given


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], r"test split: 1 of 5 sources have more tokens than the 160 positions of the model: number 1 \("),
        (["--evaluation.splits", "[validation]"], r"validation split: 1 of 6 sources have more tokens"),
    ],
    ids=["too long", "validation is evaluated too"],
)
def test_faults_of_an_evaluated_split_are_found_before_the_first_update(arguments, change, message):
    with pytest.raises(UserError, match=message):
        prepare_corpus(parse_recipe([*arguments, *change]))


def test_a_data_set_may_have_a_training_split_alone(recipe_file, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"de": "eins", "en": "one"}\n' * 9, encoding="utf-8")
    given = ["--data.demo", "null", "--data.dataset.path", str(tmp_path / "set"), "--tokenizer.vocab_size", "268"]
    given += ["--training.eval_strategy", "no", "--evaluation.splits", "[]"]
    corpus = prepare_corpus(parse_recipe(["--config", str(recipe_file), *given]))
    assert list(corpus.pairs) == ["train"] and len(corpus.encoded["train"]) == 9


def test_what_encoding_skips_is_not_translated_in_validation(arguments):
    recipe = parse_recipe([*arguments, "--evaluation.long_sources", "split"])
    corpus = prepare_corpus(recipe)
    assert corpus.pairs["validation"][:] == demo_pairs(5, split="validation", seed=0)[:3]
    reports = json.loads((recipe.run_folder / "corpus_report.json").read_text(encoding="utf-8"))
    skipped = {report["name"]: report["skipped"] for report in reports}
    assert skipped["validation tokens"] == {"longer than 64 tokens": 1} and skipped["test"] == {}


@pytest.mark.parametrize(("lengths", "drawn"), [((25, 4, 9, 7, 30), 9), ((200, 30, 25), 30)])
def test_the_attention_map_is_of_a_readable_pair_where_there_is_one(tmp_path, monkeypatch, lengths, drawn):
    """A word is two tokens, and the model has 64 positions."""
    texts = [" ".join(["a"] * length) for length in lengths]
    pairs = datasets.Dataset.from_dict({"source": texts, "target": texts})
    tokenizer, seen = demo_tokenizer(100), []
    monkeypatch.setattr(attention_maps, "plot_attention_map", lambda *given, **options: seen.append(given[2]))
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=64))
    _draw_attention(FinishedRun(None, model, tokenizer, [], {}, pairs), tmp_path / "map.png")
    assert [len(text.split()) for text in seen] == [drawn]


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [("it &apos;s {} .", "plain", 1), ("it &apos;s {} .", "moses", 0), ("it &apos;s {}.", "plain", 0)],
)
def test_a_training_on_text_of_moses_that_is_called_plain_says_so(arguments, tmp_path, capsys, text, kind, told):
    target = tmp_path / "train.target"
    lines = target.read_text(encoding="utf-8").splitlines()
    target.write_text("".join(text.format(line) + "\n" for line in lines), encoding="utf-8")
    prepare_corpus(parse_recipe([*arguments, "--data.text", kind, "--evaluation.splits", "[]"]))
    words = (
        "40 lines hold an entity such as &apos;), and data.text says plain: BLEU will be too high; set data.text: moses"
    )
    assert capsys.readouterr().out.count(words) == told
