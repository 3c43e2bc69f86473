"""Code on the pages: Python is compiled and run, commands are read by the parsers that users' commands meet."""

import ast
import re
import shlex

import pytest

from reluformer.commands import main as cli
from reluformer.commands.parsing import Parser

from ..conftest import demo_tokenizer, tiny_model
from .pages import ROOT, code_blocks

# Others name what a reader has to have: a repository on the Hub, a GPU, a program that tests do not need. They are
# compiled.
RUN = {
    "README.md",
    *(
        f"docs/{name}.md"
        for name in (
            *("analysis", "converting", "decoder", "distributed", "fine_tuning", "formula", "index", "recipes"),
            *("publishing", "reproducing", "zeros"),
            *("start", "translating", "troubleshooting", "vision"),
        )
    ),
}
PYTHON = code_blocks("python")
COMMANDS = [
    (block, command) for block in code_blocks("bash") for command in block.code.replace("\\\n", " ").splitlines()
]


class Parsed(Exception):
    """The arguments were read without a complaint, and nothing was done."""


@pytest.fixture(scope="module")
def place_of_demo(tmp_path_factory):
    """A folder with runs/demo: a model as the demo's, but tiny and untrained."""
    folder = tmp_path_factory.mktemp("user")
    tokenizer = demo_tokenizer(200)
    tokenizer.save_pretrained(folder / "runs" / "demo")
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids["decoder_start_token_id"] = tokenizer.bos_token_id
    model = tiny_model(vocab_size=len(tokenizer), encoder_layers=1, decoder_layers=1, **ids)
    model.generation_config.max_new_tokens = 8
    model.save_pretrained(folder / "runs" / "demo")
    return folder


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_compiles(block):
    ast.parse(block.code, filename=str(block))


@pytest.mark.parametrize("block", [block for block in PYTHON if block.page in RUN], ids=str)
def test_python_runs_and_prints_what_its_comments_say(block, place_of_demo, monkeypatch, capsys):
    """`print(…)  # result`: compared where the result does not depend on a trained model."""
    if block.not_run:
        pytest.skip(block.not_run)
    if block.needs:
        pytest.importorskip(block.needs, reason=f"needs {block.needs}, which an extra brings")
    monkeypatch.chdir(place_of_demo)
    exec(compile(block.code, str(block), "exec"), {"__name__": "__main__"})
    expected = re.findall(r"^print\(.*\)  # (.+)$", block.code, re.MULTILINE)
    if expected and '"runs/demo"' not in block.code:
        assert capsys.readouterr().out.splitlines() == expected


def commands_of(program: str) -> list:
    """(block, words behind the program's name) of each line that starts the program, by whichever launcher."""
    found = []
    for block, line in COMMANDS:
        words = shlex.split(line, comments=True)
        places = [at for at, word in enumerate(words) if word == program and _starts_a_program(words[:at])]
        if not places or "…" in words:
            continue
        rest = words[places[0] + 1 :]
        ends = [rest.index(sign) for sign in (">", "|", "&&") if sign in rest]
        found.append(pytest.param(block, rest[: min(ends, default=None)], id=f"{block}-{' '.join(rest[:6])}"))
    return found


def _starts_a_program(before: list[str]) -> bool:
    return all("=" in word for word in before) or before[-1] == "-m"


def _recipe_above(block, folder) -> str:
    """mine.yaml as the page has the reader write it: the last YAML before the command."""
    *_, recipe = (above for above in code_blocks("yaml") if above.page == block.page and above.line < block.line)
    (folder / "mine.yaml").write_text(recipe.code, encoding="utf-8")
    return str(folder / "mine.yaml")


@pytest.mark.parametrize("block, arguments", commands_of("reluformer"))
def test_commands_are_what_the_command_line_takes(block, arguments, monkeypatch, capsys, tmp_path):
    from reluformer.configuration import recipe_parser

    def stop(*_, **__):
        raise Parsed

    def parse(parser, given=None, namespace=None):
        found = as_it_is(parser, given, namespace)
        return found if parser.prog == "reluformer" else stop()

    # what the reader and `reluformer init` have written
    written = {"mine.yaml": lambda: _recipe_above(block, tmp_path), "de_en.yaml": lambda: "demo"}
    arguments = [written[word]() if word in written else word for word in arguments]
    as_it_is = Parser.parse_args
    monkeypatch.setattr(Parser, "parse_args", parse)
    monkeypatch.setattr(recipe_parser, "build_recipe", stop)
    monkeypatch.chdir(ROOT)
    for name in ("MASTER_ADDR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    try:
        status = cli.main(arguments)  # ends where it only prints: --help, --print_config
    except Parsed:
        status = 0
    assert status == 0, f"{block}: {capsys.readouterr().err}"


@pytest.mark.parametrize("block, arguments", commands_of("make"))
def test_make_has_the_targets(block, arguments):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for word in arguments if "=" not in word]
    missing = [target for target in targets if not re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE)]
    assert not missing, str(block)


@pytest.mark.parametrize("block, arguments", commands_of("python"))
def test_scripts_exist_and_have_the_options(block, arguments):
    if arguments[0] == "-m":
        pytest.skip("a module, not a script of the repository")
    script = (ROOT / arguments[0]).read_text(encoding="utf-8")
    options = [word.partition("=")[0] for word in arguments[1:] if word.startswith("--")]
    assert not [option for option in options if f'"{option}"' not in script], str(block)


def test_the_recipe_that_is_shown_is_one(tmp_path):
    from reluformer.configuration.recipe_parser import load_recipe

    recipes = []
    for block in (block for block in code_blocks("yaml") if block.code.startswith("base:")):
        (tmp_path / "mine.yaml").write_text(block.code, encoding="utf-8")
        recipes.append(load_recipe(tmp_path / "mine.yaml"))
    of_files, of_tables = recipes
    assert (of_files.name, of_files.data.demo, of_files.tokenizer.vocab_size) == ("mine", None, 8000)
    assert of_files.model["d_model"] == load_recipe("demo").model["d_model"]
    tables = of_tables.data.dataset
    assert tables.files["train"] == ["first.csv", "second.csv.gz"] and tables.source_column == "german"
