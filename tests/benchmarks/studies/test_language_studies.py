"""The studies of language models: their rows, and what claims, pictures and texts make of perplexities and entropies."""

import pytest
import yaml
from matplotlib.figure import Figure

from benchmarks.studies import plots as study_plots
from benchmarks.studies.claims import judge
from benchmarks.studies.outcomes import outcomes_of
from benchmarks.studies.parser import ROWS_FILE, load_rows, load_study, table_of
from benchmarks.studies.report import corpus_of, write_reproduction
from benchmarks.studies.scores import perplexity_statistics
from benchmarks.studies.tasks import Places, Task
from reluformer.training.run.records import write_json

LANGUAGE = ("lm_activation", "lm_entropy", "lm_start", "lm_attention")
PAPER = "arXiv 2410.09637"
STUDY = {
    "title": "Table 0",
    "position": 1,
    "paper": PAPER,
    "source": "nowhere",
    "rows": [
        {"row": f"{norms}_{ffn}", "label": f"{norms}, {ffn}"} for norms in ("pre", "free") for ffn in ("gelu", "relu")
    ],
    "figures": {
        "perplexity": {"label": "perplexity", "path": "perplexity.score", "digits": 3},
        "cost": {
            "label": "cost, %",
            "path": "perplexity.score",
            "digits": 1,
            "relative_to": {"free_gelu": "pre_gelu", "free_relu": "pre_relu"},
        },
    },
    "seeds": {"cpu": [1, 2]},
    "budget": {"cpu": {"updates": 10}},
}
RECORD = {
    "updates": 10,
    "processes": 1,
    "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "machine": {"cpu": "a CPU", "torch_threads": 1},
    "versions": {"torch": "1", "transformers": "2"},
}
DATA = {"corpus": {"packages": {"names": ["numpy"], "listed": "some.files.txt"}}}
GONE = {"step": 3, "reason": "the loss is not finite since update 3"}
LOG = [{"step": 5, "eval_perplexity": 90.0}, {"step": 8, "loss": 1.0}, {"step": 10, "eval_perplexity": 80.0}]
SHARES = [{"module": "decoder_self", "layer": layer, "entropy_share": 0.5 + 0.1 * layer} for layer in (1, 2)]
SHARES.append({"module": "decoder_self", "layer": "all", "entropy_share": 0.65})


@pytest.fixture
def study(tmp_path):
    """A study of language models with given claims, and a way to give its rows results: `give(row, seed, nats, …)`."""

    class Prepared:
        places = Places.of("cpu", tmp_path / "runs", tmp_path / "results")
        folder = tmp_path / "studies"

        def write(self, *claims, **changes):
            text = yaml.safe_dump({**STUDY, "claims": [{"text": "a claim", **claim} for claim in claims], **changes})
            (self.folder / "t0.yaml").write_text(text, encoding="utf-8")

        def give(self, name, seed, nats, *, seconds=99.0, **record):
            """Writes a result whose ten documents of 100 tokens each lose `nats` a token."""
            row = load_rows("cpu", self.folder).rows[name]
            path = tmp_path / "documents.tsv"
            lines = [f"{number}\t300\t100\t{100 * nats + number % 3}" for number in range(10)]
            path.write_text("\n".join(["document\tbytes\ttokens\tnats", *lines]) + "\n", encoding="utf-8")
            result = {
                "row": row.name,
                "key": row.key,
                "seed": seed,
                "training": {**RECORD, **record},
                "training_seconds": seconds,
                "evaluations": {},
                "recipe": {"data": DATA},
                "log_history": LOG,
                "analyses": {"entropy-share": {"table": SHARES}},
                "perplexity": None if "diverged" in record else perplexity_statistics(path, "test", 128),
            }
            write_json(Task(row, seed, self.places).result_file, result)

        def verdict(self):
            loaded = load_study("t0", self.folder)
            (found,) = judge(loaded, outcomes_of(loaded, load_rows("cpu", self.folder), self.places))
            return found

        def report(self):
            path = tmp_path / "docs" / "reproduction.md"
            places = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
            return write_reproduction(path, sizes=["cpu"], studies=self.folder, **places).read_text(encoding="utf-8")

    (tmp_path / "studies").mkdir()
    recipe = {"task": "language_modeling", "data": DATA, "training": {"max_steps": 10}}
    model = {"normalization": "{norms}", "hidden_act": "{ffn}"}
    rows = {
        "{norms}_{ffn}": {
            "recipe": {**recipe, "model": model},
            "each": {"norms": ["pre", "free"], "ffn": ["gelu", "relu"]},
        }
    }
    (tmp_path / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    return Prepared()


@pytest.fixture(scope="module")
def catalogue():
    return load_rows("cpu")


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_figure_is_relative_to_rows_of_its_table_with_its_seeds(name, catalogue):
    study = load_study(name)
    table = {entry.name: entry for entry in table_of(study, catalogue)}
    for figure in study.figures.values():
        for row, other in figure.relative_to.items():
            assert set(table[row].seeds) <= set(table[other].seeds), (row, other)
            assert table[row].row.key != table[other].row.key


LOWER = {"higher": "free_gelu", "lower": "free_relu", "figure": "perplexity"}
CHEAPER = {**LOWER, "figure": "cost"}


@pytest.mark.parametrize(("relu", "verdict"), [(2.0, "agrees"), (2.2, "disagrees"), (2.1, "undecided")])
def test_a_lower_perplexity_is_judged_document_by_document(study, relu, verdict):
    study.write(LOWER)
    for seed in (1, 2):
        study.give("free_gelu", seed, 2.1)
        study.give("free_relu", seed, relu)
    found = study.verdict()
    assert found.verdict == verdict and " perplexity, p = " in found.why


@pytest.mark.parametrize(("gone", "verdict"), [("free_gelu", "agrees"), ("free_relu", "disagrees")])
def test_what_does_not_converge_has_the_highest_perplexity(study, gone, verdict):
    study.write(LOWER)
    for name in ("free_gelu", "free_relu"):
        study.give(name, 1, 2.0, **({"diverged": GONE} if name == gone else {}))
    assert study.verdict().verdict == verdict
    study.write({**LOWER, "figure": "cost"})
    for name in ("pre_gelu", "pre_relu"):
        study.give(name, 1, 2.0)
    assert study.verdict().verdict == "undecided", "how much more is not known"


def test_a_relative_figure_is_percent_above_another_row_of_the_same_seed(study):
    study.write(CHEAPER)
    for seed, more in ((1, 0.0), (2, 0.3)):
        study.give("pre_gelu", seed, 2.0 + more)
        study.give("free_gelu", seed, 2.2 + more)  # e to the 0.2: 22.1 %
        study.give("pre_relu", seed, 2.1 + more)
        study.give("free_relu", seed, 2.05 + more)  # e to the -0.05: -4.9 %
    found = study.verdict()
    assert found.verdict == "agrees" and found.why == "seed 1: 22.1 against -4.9; seed 2: 22.1 against -4.9"
    report = study.report()
    assert "| free, gelu | 22.1 (22.1, 22.1) |" in report and "| free, relu | -4.9 (-4.9, -4.9) |" in report
    assert "| pre, gelu | – |" in report and "| pre, relu | – |" in report, "they are compared with nothing"


def test_a_relative_figure_waits_for_the_row_that_it_is_compared_with(study):
    study.write(CHEAPER)
    for name in ("pre_gelu", "free_gelu", "free_relu"):
        study.give(name, 1, 2.0)
    found = study.verdict()
    assert (found.verdict, found.why) == ("pending", "pre_relu: seed 1: not run; seed 2: not run")
    study.give("pre_relu", 1, 2.0, updates=9)
    assert "9 of 10 updates" in study.verdict().why
    assert study.report().count("| 0.0 |") == 1, "evidence is not compared with what is none"
    study.give("pre_relu", 1, 2.0, diverged=GONE)
    found = study.verdict()
    assert (found.verdict, found.why) == ("undecided", "what it is compared with does not converge (one seed)")
    study.give("pre_relu", 1, 2.0, updates=11)
    assert study.verdict().why.startswith("trained for")
    study.give("pre_relu", 2, 2.0)
    (study.places.results / "pre_relu-seed1.json").unlink()
    assert study.verdict().why.endswith("have no seed in common")


def test_the_report_says_how_its_perplexity_was_measured(study):
    study.write(LOWER)
    study.give("free_gelu", 1, 2.1)
    report = study.report()
    assert "Perplexity: 10 documents, 1,000 tokens of `some.files.txt`, split test, contexts of 128 tokens." in report
    assert f"1 claims of {PAPER}: pending 1." in report


def test_pictures_have_updates_or_layers_on_their_axis_and_not_the_mean_of_all_layers(study, monkeypatch):
    canvases = []
    monkeypatch.setattr(study_plots, "Canvas", lambda **options: canvases.append(Figure(**options)) or canvases[-1])
    plot = {"title": "p", "x_label": "x", "log_x": False, "lines": {"GELU": "free_gelu"}}
    over_updates = {**plot, "file": "a.png", "x": "step", "y": "eval_perplexity", "table": "log_history"}
    table = "analyses.entropy-share.table[module=decoder_self]"
    by_layer = {**plot, "file": "b.png", "x": "layer", "y": "entropy_share", "table": table, "y_label": "H / log n"}
    study.write(plots=[over_updates, by_layer])
    study.give("free_gelu", 1, 2.0)
    study.report()
    (first,), (second,) = (canvas.axes for canvas in canvases)
    assert list(first.lines[0].get_xdata()) == [5, 10] and list(first.lines[0].get_ydata()) == [90, 80]
    assert list(second.lines[0].get_xdata()) == [1, 2] and list(second.lines[0].get_ydata()) == pytest.approx(
        [0.6, 0.7]
    )
    assert (first.get_ylabel(), second.get_ylabel()) == ("eval perplexity", "H / log n")


@pytest.mark.parametrize(
    ("data", "corpus"),
    [
        (DATA, "some.files.txt"),
        ({"corpus": {"packages": {"names": ["numpy"], "listed": None}}}, "installed packages"),
        ({"corpus": None, "train": {"paths": "data/texts/train.gz"}}, "data/texts"),
        ({"train": {"paths": ["data/texts/a.gz", "data/texts/b.gz"]}}, "data/texts"),
        ({"train": {"dataset": {"path": "us/texts"}, "paths": None}}, "us/texts"),
    ],
)
def test_the_corpus_of_texts_is_named(data, corpus):
    assert corpus_of({"data": data}) == corpus
