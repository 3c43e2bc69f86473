"""A study with made-up rows, claims and results."""

from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from benchmarks.studies import running, training
from benchmarks.studies.claims import judge
from benchmarks.studies.outcomes import outcomes_of
from benchmarks.studies.parser import ROWS_FILE, load_rows, load_study
from benchmarks.studies.report import write_reproduction
from benchmarks.studies.scores import bleu_statistics
from benchmarks.studies.tasks import Places, Task
from reluformer.commands import main as cli
from reluformer.records.records import write_json
from reluformer.training.scoring.evaluation import write_translations

RECORD = {"updates": 2400}
STUDY = {
    "title": "Table 0",
    "position": 1,
    "source": "nowhere",
    "rows": [
        {"row": "softmax", "label": "softmax", "paper": {"bleu": 34.22}},
        {"row": "relu", "label": "ReLU", "paper": {"bleu": "does not converge"}},
        {"row": "elsewhere", "label": "WMT", "paper": {"bleu": 27.64}, "not_here": "needs a GPU"},
        {"row": "width_{n}", "label": "width {n}"},
    ],
    "figures": {
        "bleu": {"label": "BLEU", "path": "bleu.score"},
        "entropy": {"label": "H", "path": "analyses.entropy.table[layer=all,module=cross].entropy"},
        "dead": {"label": "dead, %", "path": "log.eval_dead_row_fraction", "digits": 1, "factor": 100},
        "over": {"label": "over softmax, %", "path": "bleu.score", "digits": 1, "relative_to": {"relu": "softmax"}},
    },
    "seeds": {"cpu": [1, 2]},
    "plots": [
        {"file": "p.png", "title": "widths", "x": "n", "y": "bleu", "x_label": "n", "lines": {"width": "width_{n}"}}
    ],
}


class PreparedStudy:
    """A study with given claims, and a way to give its rows results: `give(row, seed, quality, …)`."""

    content = STUDY
    gone = {"step": 90, "reason": "the loss is not finite since update 90"}

    def __init__(self, root):
        self.root, self.folder = root, root / "studies"
        self.places = Places.of("cpu", root / "runs", root / "results")

    def claims(self, *claims, **changes):
        text = yaml.safe_dump({**STUDY, "claims": [{"text": "a claim", **claim} for claim in claims], **changes})
        (self.folder / "t0.yaml").write_text(text, encoding="utf-8")

    def task(self, name, seed):
        return Task(load_rows("cpu", self.folder).rows[name], seed, self.places)

    def give(self, name, seed, quality, *, updates=2400, entropy=1.0, analyses=True, sentences=80, **record):
        """Writes a result whose BLEU is high where `quality` is near 1, and returns it."""
        task = self.task(name, seed)
        row = task.row
        table = [
            {"layer": 1, "module": "cross", "entropy": 9.9},
            {"layer": "all", "module": "cross", "entropy": entropy, "noisy": entropy, "noisy_error": 0.1},
        ]
        result = {
            "row": row.name,
            "key": row.key,
            "seed": seed,
            "training": {**RECORD, "updates": updates, **record},
            "training_seconds": 60.0,
            "evaluations": {"document_bleu": entropy},
            "recipe": {"data": {"train": {"source": "data/train.de", "target": "data/train.en"}}},
            "log_history": [{"step": 5, "eval_dead_row_fraction": 0.25}, {"step": 9}],
            "analyses": {"entropy": {"table": table}} if analyses else {},
            "bleu": None if record.get("diverged") else bleu_statistics(self._translations(quality, sentences), {}),
        }
        write_json(task.result_file, result)
        return result

    def _translations(self, quality, sentences):
        words = [f"w{number}" for number in range(30)]
        generator = np.random.default_rng(0)
        references = [" ".join(generator.choice(words, 9)) for _ in range(sentences)]
        noisy = np.random.default_rng(int(quality * 1000))
        hypotheses = [
            " ".join(word if noisy.random() < quality else "x" for word in reference.split())
            for reference in references
        ]
        return write_translations(self.root / "translations.tsv", references, hypotheses, references)

    def outcomes(self):
        return outcomes_of(load_study("t0", self.folder), load_rows("cpu", self.folder), self.places)

    def verdicts(self):
        return judge(load_study("t0", self.folder), self.outcomes())

    def verdict(self):
        (verdict,) = self.verdicts()
        return verdict

    def report(self):
        path = self.root / "docs" / "reproduction.md"
        places = {"runs": self.root / "runs", "results": self.root / "results"}
        return write_reproduction(path, sizes=["cpu"], studies=self.folder, **places).read_text(encoding="utf-8")


@pytest.fixture
def study(tmp_path):
    """A study of four rows without a result, in a folder of its own."""
    (tmp_path / "studies").mkdir()
    rows = {
        "softmax": {"recipe": {"model": {"preset": "vanilla"}}},
        "relu": {"recipe": {"model": {"preset": "reluformer"}}},
        "elsewhere": {"recipe": {"model": {"preset": "rela"}}, "sizes": ["paper"]},
        "width_{n}": {"recipe": {"model": {"d_model": "{n}"}}, "each": {"n": [8, 16]}},
    }
    (tmp_path / "studies" / ROWS_FILE).write_text(yaml.safe_dump(rows, sort_keys=False), encoding="utf-8")
    return PreparedStudy(tmp_path)


@pytest.fixture
def started(monkeypatch):
    """Rows run in this process; a list of their names and verbs."""
    found, programs = [], {"reluformer": cli.main, "benchmarks.studies.training": training.main}

    def start(command, log):
        found.append((log.name.split("-")[0], command[1]))
        return SimpleNamespace(returncode=programs[command[0]](command[1:]), wait=lambda: None)

    monkeypatch.setattr(running, "start", start)
    return found
