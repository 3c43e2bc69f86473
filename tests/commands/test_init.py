"""`reluformer init`: the recipe suits the text, trains as it is, and mistakes are one line."""

import datasets
import pytest
import torch
from sacremoses import MosesTokenizer
from transformers import BertConfig

from reluformer.commands import init
from reluformer.commands import main as cli
from reluformer.configuration.recipe_parser import load_recipe, parse_recipe
from reluformer.training.data.demo_corpus import demo_pairs
from reluformer.training.run import precision
from reluformer.training.run.model_building import build_config
from reluformer.translating import moses
from reluformer.translating.loading import load_model_and_tokenizer
from reluformer.translating.moses import MosesTraces


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """The folder with small files, which is the current one; each line is so many number words."""
    monkeypatch.chdir(tmp_path)

    def write(words: int = 1):
        for split, count in {"train": 60, "val": 8, "test": 6}.items():
            pairs = demo_pairs(count * words, split="train", seed=len(split))
            for side, language in {"source": "de", "target": "en"}.items():
                lines = [" ".join(pairs[side][start::count]) for start in range(count)]
                (tmp_path / f"{split}.{language}").write_text("\n".join([*lines, ""]), encoding="utf-8")

    write()
    return write


TRAIN = ["init", "--source", "train.de", "--target", "train.en"]
VALIDATION, TEST = ["--validation", "val.de", "val.en"], ["--test", "test.de", "test.en"]


@pytest.mark.parametrize(
    ("options", "name", "preset", "splits", "watched", "said"),
    [
        ([*VALIDATION, *TEST], "de_en", "reluformer", ["test"], "steps", []),
        ([*VALIDATION, "--softmax"], "de_en_softmax", "vanilla", ["validation"], "steps", ["no --test: the val"]),
        ([], "de_en", "reluformer", [], "no", ["no --validation", "no --test: nothing"]),
    ],
)
def test_the_recipe_trains_as_it_is(corpus, capsys, options, name, preset, splits, watched, said):
    assert cli.main([*TRAIN, *options]) == 0
    out = capsys.readouterr().out
    assert out.count("no --") == len(said) and all(words in out for words in said)
    assert out.endswith(f"wrote {name}.yaml; now: reluformer train --config {name}.yaml\n")
    recipe = load_recipe(f"{name}.yaml")
    assert (recipe.name, recipe.model["preset"], recipe.evaluation.splits) == (name, preset, splits)
    assert recipe.training.eval_strategy == watched
    assert recipe.model.get("attention_gamma") == (16.0 if preset == "reluformer" else None)
    assert recipe.training.max_steps == 200 and 260 < recipe.tokenizer.vocab_size < 4000  # small, but not too small
    build_config(recipe)
    if said == []:
        fast = ["--training.max_steps", "2", "--evaluation.num_beams", "1", "--evaluation.samples", "0"]
        assert cli.main(["train", f"{name}.yaml", *fast]) == 0


BASE = [*TRAIN, *VALIDATION, *TEST, "--base", "tatoeba-de-en"]


def test_a_recipe_that_starts_from_a_model_trains_its_weights_with_its_tokenizer(corpus, tmp_path):
    assert cli.main(BASE) == 0
    recipe = load_recipe("de_en.yaml")
    assert recipe.initialize_from == "tatoeba-de-en" and recipe.model == {} and recipe.data.max_length == 256
    assert (recipe.training.max_steps, recipe.training.warmup_steps) == (100, 10)
    fast = ["--training.max_steps", "2", "--evaluation.num_beams", "1", "--evaluation.samples", "0"]
    assert cli.main(["train", "de_en.yaml", *fast, "--training.learning_rate", "0"]) == 0
    (trained, tokenizer), (model, known) = map(load_model_and_tokenizer, ("runs/de_en", "tatoeba-de-en"))
    assert tokenizer.get_vocab() == known.get_vocab()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], weight, rtol=0, atol=0)


FINE_TUNING = """\
# reluformer train --config de_en.yaml
# Written by `reluformer init` for 60 pairs of about 12 tokens a side; docs/fine_tuning.md says by which rule.
name: de_en
data:
  source_language: "de"
  target_language: "en"
  text: plain
  max_length: 256
  train: {source: "train.de", target: "train.en"}
  validation: {source: "val.de", target: "val.en"}
  test: {source: "test.de", target: "test.en"}
initialize_from: "tatoeba-de-en"
batching: {tokens_per_batch: 4096}
evaluation: {splits: [test], at_most: 200, long_sources: split}
training:
  seed: 1
  max_steps: 100
  learning_rate: 0.0005
  lr_scheduler_type: cosine
  warmup_steps: 10
  adam_beta2: 0.98
  logging_steps: 50
  eval_strategy: steps
  eval_steps: 10
  save_steps: 10
  save_total_limit: 2
  use_cpu: true
  bf16: false
"""


def test_the_whole_recipe_of_a_fine_tuning(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(precision, "has_bfloat16", lambda: False)
    # the longest line is not what a line is about
    for name in ("train.de", "train.en"):
        path = tmp_path / name
        *lines, _ = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([*lines, "word " * 50]), encoding="utf-8")
    assert cli.main(BASE) == 0
    assert (tmp_path / "de_en.yaml").read_text(encoding="utf-8") == FINE_TUNING


@pytest.mark.parametrize(
    ("lengths", "max_length", "positions"),
    [
        ([10] * 1_000, 64, 1_024),  # the least
        ([10] * 990 + [100] * 10, 128, 1_024),  # one in a hundred is read whole
        ([10] * 996 + [100] * 4, 64, 1_024),  # four in a thousand are not
        ([1_000] * 1_000, 1_024, 2_048),  # twice as many positions as the longest pair
        ([9_000] * 1_000, 2_048, 4_096),  # the most
    ],
)
def test_the_longest_pair_that_is_read_and_the_positions_follow_the_lengths(
    monkeypatch, lengths, max_length, positions
):
    monkeypatch.setattr(init, "_lengths", lambda pairs, tokenizer: lengths)
    pairs = demo_pairs(60, split="train", seed=1)
    model = init._new_model(pairs, ("de", "en"), softmax=False)
    assert model.max_length == max_length and f"max_position_embeddings: {positions}," in model.text


def test_the_vocabulary_follows_the_number_of_pairs(monkeypatch):
    monkeypatch.setattr(init, "SIZES", ((60, init.SMALL, 300), (float("inf"), init.SMALL, 310)))
    monkeypatch.setattr(init, "MEASURED_PAIRS", 30)  # else the size of the trained tokenizer is taken
    for count, vocabulary in ((59, 300), (60, 310)):
        pairs = demo_pairs(count, split="train", seed=1)
        assert f"{{vocab_size: {vocabulary}}}" in init._new_model(pairs, ("de", "en"), softmax=False).text


def test_few_pairs_are_read_twenty_times_and_many_for_five_thousand_updates():
    lengths = [10, 20, 30]
    assert [init._fine_tuned_updates(pairs, lengths) for pairs in (500, 2_000, 29_000, 1_000_000)] == [
        100,
        195,
        2832,
        5000,
    ]


@pytest.mark.parametrize(
    ("model", "files", "named"),
    [
        ("tatoeba-en-de", TRAIN, "--base: 'tatoeba-en-de' translates en → de, and the files end in de and en"),
        (
            "tatoeba",
            TRAIN,
            "'tatoeba': no such folder here, and no model of the package (tatoeba-de-en, tatoeba-en-de)",
        ),
        ("bert", TRAIN, "--base: bert: is a 'bert' model, and a ReLUFormer for translation is needed"),
    ],
)
def test_a_base_of_another_kind_is_refused(corpus, capsys, tmp_path, model, files, named):
    BertConfig().save_pretrained(tmp_path / "bert")
    assert cli.main([*files, "--base", model]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1 and not (tmp_path / "de_en.yaml").exists()


def test_long_lines_get_their_length(corpus):
    corpus(words=40)
    assert cli.main(TRAIN) == 0 and load_recipe("de_en.yaml").data.max_length > 128


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--source", "train.de", "--target", "val.en"], "found 60 in train.de and 8 in val.en"),
        (["--source", "train.de", "--target", "val.de"], "'val.de' ends in the language of --source"),
        (["--source", "train.de", "--target", "val.txt"], "'val.txt' does not end in a language"),
        ([*TRAIN[1:], "--output", "test.de"], "'test.de' exists already"),
        ([*TRAIN[1:], "--test", "train.de", "train.en"], "--test: these are the training files"),
    ],
)
def test_mistakes_are_refused_in_one_line(corpus, capsys, tmp_path, arguments, named):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli.main(["init", *arguments]) == 2
    error = capsys.readouterr().err
    assert named in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_pairs_that_are_left_out_are_named(corpus, capsys, tmp_path):
    (tmp_path / "val.de").write_text("eins\n\ndrei\n", encoding="utf-8")
    (tmp_path / "val.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    assert cli.main([*TRAIN, *VALIDATION]) == 0
    out = capsys.readouterr().out
    assert out.startswith("validation: 2 of 3 pairs kept; skipped 1 × ") and "train:" not in out


PLAIN = ("„Ja“, sagt er. Und: Was ist das?", "\"It's that\", he says. And: what's this?")


@pytest.mark.parametrize("tokenized", [(), ("de", "en"), ("en",)])
def test_text_that_moses_has_tokenised_is_known_and_said(corpus, capsys, tmp_path, tokenized):
    for split in ("train", "test"):
        for language, text in zip(("de", "en"), PLAIN, strict=True):
            if language in tokenized:
                text = MosesTokenizer(language).tokenize(text, escape=True, return_str=True)
            (tmp_path / f"{split}.{language}").write_text(f"{text}\n" * 20, encoding="utf-8")
    assert cli.main([*TRAIN, *TEST]) == 0
    out = capsys.readouterr().out
    assert load_recipe("de_en.yaml").data.text == ("moses" if tokenized else "plain")
    found = (
        "stands alone in 20 of 20 lines that have one, 20 lines hold an entity such as &apos;): wrote data.text: moses"
    )
    assert (found in out) == bool(tokenized)
    one_side = "train source: looks plain, and train target tokenised by Moses; prepare all files alike"
    assert (one_side in out) == (tokenized == ("en",))


def test_text_without_marks_is_not_said_to_differ_from_what_moses_has_tokenised(corpus, capsys, tmp_path):
    for name, text in {"train.de": "Gut , ja .", "train.en": "Good , yes .", "val.de": "gut", "val.en": "good"}.items():
        (tmp_path / name).write_text(f"{text}\n" * 20, encoding="utf-8")
    assert cli.main([*TRAIN, *VALIDATION]) == 0
    out = capsys.readouterr().out
    assert "wrote data.text: moses" in out and "prepare all files alike" not in out


def test_plain_text_with_spaces_before_some_marks_and_with_entities_is_no_text_of_moses():
    french = MosesTraces.of(["Quoi ? Oui !", "« Non », dit-il ; et voilà : rien."])
    of_the_web = MosesTraces.of(["It&apos;s R&amp;B, he says."] * 3)
    numbers = MosesTraces.of(["3.5 , 4", "a . b", "Etc."])  # two of three
    half = MosesTraces.of(["3.5 , 4", "a.", "Etc.", "b ."])
    assert [each.are_tokenized for each in (french, of_the_web, numbers, half)] == [False, False, True, False]
    assert (french.marked, of_the_web.entities, MosesTraces.of(["eins"]).are_tokenized) == (1, 3, False)


def test_traces_of_moses_are_looked_for_all_over_a_corpus(monkeypatch):
    monkeypatch.setattr(moses, "_LOOKED_AT", 4)
    texts = {"source": ["Gut."] * 8, "target": ["Good."] * 2 + ["Good ."] * 6}  # another corpus stands at its beginning
    traces = MosesTraces.of_corpus(datasets.Dataset.from_dict(texts), "target")
    assert traces.are_tokenized and traces.lines <= 4


@pytest.mark.parametrize("in_hardware", [False, True])
def test_bfloat16_is_for_a_processor_that_computes_it(corpus, monkeypatch, in_hardware):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(precision, "has_bfloat16", lambda: in_hardware)
    assert cli.main(TRAIN) == 0
    training = parse_recipe(["--config", "de_en.yaml"]).training
    assert (training.use_cpu, training.bf16) == (True, in_hardware)


def test_a_short_training_warms_up_in_a_quarter_of_it(corpus):
    assert cli.main(TRAIN) == 0 and load_recipe("de_en.yaml").training.warmup_steps == 50  # of 200 updates


@pytest.mark.parametrize(("name", "size"), [("iwslt14_de_en", init.MIDDLE), ("wmt14_en_de", init.LARGE)])
def test_sizes_of_the_paper_are_those_of_its_recipes(name, size):
    recipe = parse_recipe(["--config", name, "--training.use_cpu", "true"])
    model, training = recipe.model, recipe.training
    for side in ("encoder", "decoder"):
        sizes = tuple(model[f"{side}_{each}"] for each in ("layers", "attention_heads", "ffn_dim"))
        assert sizes == (size.layers, size.heads, size.feed_forward)
    assert (model["d_model"], recipe.batching.tokens_per_batch) == (size.width, size.batch)
    assert (training.warmup_steps, training.max_steps) == (size.warmup, size.updates)
