"""The command line: one line for a mistake, exit codes, and the commands on a tiny run."""

import inspect
import io
import json
import subprocess
import sys
from itertools import product

import datasets
import pytest

from reluformer.analysis.inputs import AnalysisOptions
from reluformer.commands import main as cli
from reluformer.commands.parsing import DECODING, Parser
from reluformer.commands.train import train_and_document as train
from reluformer.configuration.errors import TrainingStopped, UserError
from reluformer.configuration.recipe_parser import load_recipe
from reluformer.export.exporting import export
from reluformer.hub_cards.publishing import publish
from reluformer.training.conversion import convert
from reluformer.training.data.corpus import CorpusReport
from reluformer.training.run.run_folder import RECIPE_FILE, RECORD_FILE
from reluformer.translating import shipped
from reluformer.translating.translation import Translator

from ..training.conftest import recipe_file  # noqa: F401  (a fixture)


def run(capsys, *arguments):
    """Exit status, stdout and stderr of a command in this process."""
    capsys.readouterr()
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def assert_one_line_error(capsys, *arguments) -> str:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("reluformer: error: ")
    assert err.count("\n") == 1
    return err


def test_help_names_the_commands(capsys):
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert all(command in out for command in cli.VERBS)


def test_models_lists_those_of_the_package_with_languages_scores_and_folders(capsys, monkeypatch, tmp_path):
    """A folder without a config.json is none; the scores are those of the first system."""
    monkeypatch.setattr(shipped, "MODELS", tmp_path)
    for name in ("nl-fy", "no-model"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "nl-fy"
    (folder / "config.json").touch()
    (folder / "model.safetensors").write_bytes(bytes(2_340_000))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_language": "nl", "target_language": "fy"}))
    scores = [
        {"system": system, "test": test, "bleu": bleu}
        for bleu, (system, test) in enumerate(product(("ours", "greedy"), ("A", "B")), start=41)
    ]
    (folder / shipped.FIGURES_FILE).write_text(json.dumps({"scores": scores}))
    status, out, _ = run(capsys, "models")
    first, second, *words = out.splitlines()
    assert (status, first) == (0, "nl-fy: nl to fy, BLEU 41.0 on A, 42.0 on B, 2.3 MB")
    assert (second, len(words)) == (f"    {folder}", 1)


@pytest.mark.parametrize("command", sorted(set(cli.VERBS) - {"train"}))  # whose options are fields of a recipe
def test_help_explains_every_option(command, capsys, monkeypatch):
    written = []
    monkeypatch.setattr(Parser, "format_help", lambda parser: written.append(parser) or "")
    assert run(capsys, command, "--help")[0] == 0
    assert [action.dest for parser in written for action in parser._actions if not action.help] == []
    assert written


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("analyze", AnalysisOptions),
        ("convert", convert),
        ("export", export),
        ("publish", publish),
    ],
)
def test_a_verb_offers_all_that_its_function_takes(command, function, capsys, monkeypatch):
    written = []
    monkeypatch.setattr(Parser, "format_help", lambda parser: written.append(parser) or "")
    run(capsys, command, "--help")
    options = {action.dest for action in written[0]._actions} - {"help"}
    assert options == set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("give\n another"), 2, "error: give another"),
        (TrainingStopped("saved"), 143, "saved"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("after 3 steps"), 130, "interrupted: after 3 steps"),
        (PermissionError(13, "Permission denied", "a/file"), 2, "error: a/file: Permission denied"),
        (
            OSError(28, "No space left on device"),
            2,
            "error: a file cannot be written: No space left on device; free space where it goes",
        ),
    ],
)
def test_every_end_has_its_status_and_one_line_on_stderr(error, status, line, capsys):
    def ends():
        raise error

    assert cli.exit_status(ends) == status
    assert capsys.readouterr() == ("", f"reluformer: {line}\n")


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "ours"), ValueError("a bug"), OSError("a bug")])
def test_what_no_user_can_mend_is_raised(error):
    def ends():
        raise error

    with pytest.raises(type(error)):
        cli.exit_status(ends)


def test_a_pipe_that_was_closed_is_found_before_python_ends(monkeypatch):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    monkeypatch.setattr(cli, "_silence_stdout", lambda: None)
    assert cli.exit_status(lambda: 0) == cli.EXIT_BROKEN_PIPE == 141


def test_what_succeeds_has_its_own_status():
    assert [cli.exit_status(lambda: 0), cli.exit_status(lambda: 5)] == [0, 5]


@pytest.mark.slow
def test_python_m_reluformer_is_the_command(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "reluformer", "train", "--config", "nowhere.yaml"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("reluformer: error: --config: no file 'nowhere.yaml'")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("tarin", "invalid choice: 'tarin'"),
        ("", "command"),
        ("train", "mine.yaml"),
        ("evaluate --run {folder}", "run folder"),
        ("evaluate --run {folder} --split dev", "'dev'"),
        ("evaluate --run {folder} --samples -1", "--samples: -1 must be at least 0"),
        ("translate --model {folder} --input {folder}/a eins", "not both"),
        ("translate --model {folder} --input {folder}/missing", "missing"),
        ("translate --model {folder} --input {folder}/latin", "line 2"),
        ("translate --model {folder} --output {folder}/no/such eins", "/no/such"),
    ],
)
def test_mistakes_are_one_line_and_status_2(capsys, tmp_path, command, named):
    (tmp_path / "latin").write_bytes(b"eins\nf\xfcnf\n")
    assert named in assert_one_line_error(capsys, *command.format(folder=tmp_path).split())


def test_a_text_with_dashes_stays_as_it_is():
    parser = Parser()
    parser.add_argument("text", nargs="*")
    parser.add_argument("--num_beams")
    found = parser.parse_args(["--num-beams=3", "--Ja-nein Wort-wort", "--", "--well-known"])
    assert (found.num_beams, found.text) == ("3", ["--Ja-nein Wort-wort", "--well-known"])


def test_an_interruption_is_status_130(capsys, monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("reluformer.commands.train.run", interrupt)
    assert run(capsys, "train")[0] == 130


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("reluformer.commands.train.run", lambda arguments: {}["not the user's mistake"])
    with pytest.raises(KeyError, match="not the user's"):
        cli.main(["train"])


def test_train_evaluate_and_translate(capsys, recipe_file, tmp_path, monkeypatch):  # noqa: F811
    folder = train(load_recipe(recipe_file))
    finished = assert_one_line_error(capsys, "train", "--config", recipe_file)
    assert "--overwrite" in finished

    assert {"README.md", "attention_map.png", "training_curve.png"} <= {path.name for path in folder.iterdir()}
    folder = folder.rename(tmp_path / "moved")  # its recipe still names the place where it was trained
    status, out, _ = run(capsys, "evaluate", "--run", folder, "--split", "validation", "--num_beams", "1")
    assert status == 0
    assert out.strip().splitlines()[-1].endswith("on 6 held-out sentences (validation)")
    evaluation = json.loads((folder / "evaluation.validation.json").read_text(encoding="utf-8"))
    assert evaluation["decoding"]["num_beams"] == 1
    assert evaluation["sentences"] == 6
    assert "validation" in (folder / "README.md").read_text(encoding="utf-8")

    long = "eins " * 200
    pairs = datasets.Dataset.from_dict({"source": ["zwölf", long], "target": ["twelve", "one"]})
    with monkeypatch.context() as patch:
        report = CorpusReport("long test", read=2, kept=2)
        patch.setattr("reluformer.training.scoring.evaluation.load_split", lambda *_: (pairs, report))
        evaluate = ["evaluate", "--run", folder, "--num_beams", "1", "--samples", "0"]
        status, _, error = run(capsys, *evaluate)
        assert status == 2 and "1 of 2 sources have more tokens than" in error
        assert run(capsys, *evaluate, "--long_sources", "split")[0] == 0
    evaluation = json.loads((folder / "evaluation.test.json").read_text(encoding="utf-8"))
    assert evaluation["shortened_sources"] == [2] and evaluation["decoding"]["long_sources"] == "split"
    assert "long_sources split" in (folder / "README.md").read_text(encoding="utf-8")

    before = (folder / RECIPE_FILE).read_text(encoding="utf-8")
    assert run(capsys, "evaluate", "--run", folder, "--num_beams", "1", "--data.text", "moses")[0] == 0
    evaluation = json.loads((folder / "evaluation.test.json").read_text(encoding="utf-8"))
    assert "|detokenized:moses:en|" in evaluation["bleu_signature"] and "tokenized_bleu" in evaluation
    assert (folder / RECIPE_FILE).read_text(encoding="utf-8") == before.replace("text: plain", "text: moses") != before
    assert "Moses had tokenised" in (folder / "README.md").read_text(encoding="utf-8")
    assert run(capsys, "evaluate", "--run", folder, "--num_beams", "1")[0] == 0, "as the recipe says now"
    assert "tokenized_bleu" in json.loads((folder / "evaluation.test.json").read_text(encoding="utf-8"))
    assert (folder / RECIPE_FILE).read_text(encoding="utf-8") == before.replace("text: plain", "text: moses")
    (folder / RECORD_FILE).write_text("{", encoding="utf-8")
    assert f"{RECORD_FILE}: is damaged" in assert_one_line_error(capsys, "evaluate", "--run", folder)

    source = tmp_path / "source.txt"
    source.write_bytes("zwölf\n\nelf\rzehn\r\n".encode())
    translate = ["translate", "--model", folder, "--num_beams", "1"]
    target = tmp_path / "target.txt"
    assert run(capsys, *translate, "--input", source, "--output", target)[:2] == (0, "")
    lines = target.read_text(encoding="utf-8").split("\n")
    assert (len(lines), lines[1], lines[3]) == (4, "", "")
    _, from_arguments, _ = run(capsys, *translate, "zwölf", "", "elf\rzehn")
    assert "\r" in from_arguments and from_arguments.replace("\r", " ").split("\n") == lines
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source.read_bytes())))
    assert run(capsys, *translate)[1].split("\n") == lines


def test_help_tells_what_the_translator_decodes_with(capsys):
    defaults = inspect.signature(Translator.__init__).parameters
    for name, told in DECODING.items():
        assert float(told) == defaults[name].default
    assert cli.main(["translate", "--help"]) == 0
    assert "width of the beam; default: 5" in " ".join(capsys.readouterr().out.split())
