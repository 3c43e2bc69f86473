"""CONTRIBUTING's table of what a change touches: in a copy of the package, the files that a row names are enough."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from .docs.pages import ROOT

# The text of each file that is there, and what takes its place; a file that is new has none.
CHANGES = {
    "a point-wise activation": {
        "modeling_reluformer/attention_reluformer.py": (
            '    "sigmoid": torch.sigmoid,\n}',
            '    "sigmoid": torch.sigmoid,\n    "squared_gelu": lambda scores: nn.functional.gelu(scores).square(),\n}',
        ),
        "modeling_reluformer/fused/activations.py": (
            '    "softmax": Activation(',
            """    "squared_gelu": Activation(
        "GELU²",
        r"\\mathrm{GELU}(x_{ij})^2",
        lambda g, x, u: _aten.gelu_backward(2 * g * torch.nn.functional.gelu(x), x),
        closed_at_zero=True,
    ),
    "softmax": Activation(""",
        ),
    },
    "its speed on a CPU": {
        "modeling_reluformer/compiled/attention/activations.h": (
            "}  // namespace\n}  // namespace reluformer",
            """struct SquaredGelu {
  static Floats value(Floats x) {
    const Floats u = Gelu::value(x);
    return u * u;
  }
  static Floats chain(Floats x, Floats, Floats g) {
    const Floats u = Gelu::value(x);
    return Gelu::chain(x, u, 2.0f * u * g);
  }
};

}  // namespace
}  // namespace reluformer""",
        ),
        "modeling_reluformer/compiled/attention/kernels.h": (
            '  ACTIVATION(Gelu, "gelu", false)          \\\n',
            '  ACTIVATION(Gelu, "gelu", false)          \\\n  ACTIVATION(SquaredGelu, "squared_gelu", true) \\\n',
        ),
    },
    "a figure of `reluformer analyze`": {
        "analysis/biases.py": (
            None,
            '''
            from reluformer.analysis.analyze import AnalysisResult, in_words


            def largest_bias(subject):
                """The largest bias of the model, in one row."""
                named = dict(subject.model.named_parameters())
                biases = [weight for name, weight in named.items() if name.endswith("bias")]
                table = [{"module": "all", "largest": max(float(bias.detach().abs().max()) for bias in biases)}]
                return AnalysisResult(table, in_words(table, "largest"), lambda *_: [])
            ''',
        ),
        "analysis/analyses.py": (
            "ANALYSES = {\n",
            'ANALYSES = {\n    "largest-bias": ("biases.largest_bias", MODEL),\n',
        ),
    },
    "a score": {
        "configuration/scores.py": (
            '    Score("chrf", "chrF", "chrF", "chrf", "CHRF", in_training=True),\n',
            """    Score("chrf", "chrF", "chrF", "chrf", "CHRF", in_training=True),
    Score("word_chrf", "chrF++", "chrF++", "chrf", "CHRF", {"word_order": 2}),
""",
        ),
    },
    "a verb of the command line": {
        "commands/hello.py": (None, 'def run(arguments):\n    print("hello", *arguments)\n    return 0\n'),
        "commands/main.py": ("VERBS = {\n", 'VERBS = {\n    "hello": "greets",\n'),
    },
    "the entropy margin": {
        "modeling_reluformer/loss_reluformer.py": ("DEFAULT_ENTROPY_MARGIN = 0.7", "DEFAULT_ENTROPY_MARGIN = 0.65"),
    },
    "a corpus of files": {
        "configuration/recipes/letters.yaml": (
            None,
            """
            name: letters
            data:
              source_language: de
              target_language: en
              max_length: 32
              train: {source: train.de, target: train.en}
              test: {source: train.de, target: train.en}
            tokenizer: {vocab_size: 290}
            model: {d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2,
              decoder_attention_heads: 2, encoder_ffn_dim: 16, decoder_ffn_dim: 16, max_position_embeddings: 64}
            evaluation: {splits: [test], num_beams: 1}
            training: {max_steps: 2, eval_strategy: "no", use_cpu: true}
            """,
        ),
    },
    "a fact on the card": {
        "hub_cards/card_template.md": (
            '{{- row("parameters", record.parameters) -}}\n',
            '{{- row("parameters", record.parameters) -}}\n{{- row("steps of the optimizer", record.updates) -}}\n',
        ),
    },
}
# Each with what shows it instead.
ELSEWHERE = {
    "its speed on a GPU": "needs a card; tests/modeling_reluformer/fused/test_triton.py has all kernels",
    "an option of `relu_attention`": "test_operator.py compares the fields of Python and C++",
    "a sentence of the verdict on ReLU and softmax": "tests/benchmarks/ and tests/docs/ compare pages and results",
    "the card of another type of model": "no fourth type of model is small enough to write here",
}
# What a GELU² must compute, forward and backward. `compiled`: by the library, which computes in float32 alone.
SQUARED_GELU = """
    import torch
    import reluformer
    from reluformer import ReLUFormerConfig, ReLUFormerForConditionalGeneration, relu_attention
    from reluformer.modeling_reluformer.attention_reluformer import reference_attention
    from reluformer.modeling_reluformer.compiled.library import library
    from reluformer.modeling_reluformer.fused import attention

    print(reluformer.__file__)
    if compiled:
        assert "squared_gelu" in library(large=True).activations()
    attention._is_small = lambda *call: False
    tensors = [torch.randn(2, 3, 40, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for dtype in (torch.float32,) if compiled else (torch.float64, torch.float32):
        leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        output, row_sum = relu_attention(*leaves, scaling="none", activation="squared_gelu", statistics="sum")
        wanted = reference_attention(*tensors, activation="squared_gelu", statistics="sum")
        torch.testing.assert_close(output.double(), wanted.output, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(row_sum.double(), wanted.row_sum, rtol=1e-4, atol=1e-4)
        gradients = torch.autograd.grad(output.sum() + row_sum.square().sum(), leaves)
        expected = torch.autograd.grad(wanted.output.sum() + wanted.row_sum.square().sum(), tensors)
        for one, other in zip(gradients, expected, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    sizes = {"vocab_size": 11, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    sizes |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = ReLUFormerConfig(**sizes, attention_activation="squared_gelu")
    model, ids = ReLUFormerForConditionalGeneration(config).eval(), torch.tensor([[3, 4, 5]])
    logits = model(input_ids=ids, decoder_input_ids=ids).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(logits, model(input_ids=ids, decoder_input_ids=ids).logits)
"""


@pytest.fixture
def copy(tmp_path):
    """A function that changes a copy of the package as some rows say, and returns one that runs Python there."""
    for path in (ROOT / "reluformer").iterdir():
        if path.is_symlink() and path.name != "models":
            shutil.copytree(path.resolve(), tmp_path / path.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copytree(
        ROOT / "reluformer", tmp_path / "reluformer", symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
    )

    def run(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert result.returncode == 0, result.stderr[-3000:]
        return result.stdout

    def changed(*rows: str):
        for row in rows:
            for name, (before, after) in CHANGES[row].items():
                path = tmp_path / name
                if before is None:
                    path.write_text(textwrap.dedent(after), encoding="utf-8")
                    continue
                text = path.read_text(encoding="utf-8")
                assert text.count(before) == 1, name
                path.write_text(text.replace(before, after), encoding="utf-8")
        return run

    return changed


def test_each_row_of_the_table_is_tried_or_says_what_shows_it():
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## What a change touches")[1].split("##")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)[1:])
    assert rows.keys() == CHANGES.keys() | ELSEWHERE.keys()
    for row, files in CHANGES.items():
        for name in files:
            folder = name.rpartition("/")[0]
            known = [name, name.removeprefix("modeling_reluformer/"), f"{folder}/"]
            assert any(f"`{each}`" in rows[row] for each in known), (row, name)


def program(text: str, compiled: bool) -> str:
    return f"compiled = {compiled}\n{textwrap.dedent(text)}"


def test_two_files_add_a_point_wise_activation(copy, tmp_path):
    run = copy("a point-wise activation")
    assert run("-c", program(SQUARED_GELU, compiled=False)).startswith(str(tmp_path))


@pytest.mark.slow
def test_two_more_files_compile_it(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "libraries"))
    copy("a point-wise activation", "its speed on a CPU")("-c", program(SQUARED_GELU, compiled=True))


@pytest.mark.slow
def test_figure_score_verb_margin_corpus_and_fact(copy, tmp_path):
    run = copy(*(row for row in CHANGES if not row.startswith(("a point-wise", "its speed"))))
    for side, words in (("de", ("eins zwei drei", "vier fünf")), ("en", ("one two three", "four five"))):
        (tmp_path / f"train.{side}").write_text("\n".join(words * 20) + "\n", encoding="utf-8")
    assert run("-m", "reluformer", "hello", "you") == "hello you\n"
    run("-m", "reluformer", "train", "--config", "letters")
    folder = tmp_path / "runs" / "letters"
    assert '"entropy_margin": 0.65' in (folder / "config.json").read_text(encoding="utf-8")
    assert "word_chrf" in (folder / "evaluation.test.json").read_text(encoding="utf-8")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "\n| steps of the optimizer | 2 |\n" in card and "chrF++" in card
    assert "largest" in run("-m", "reluformer", "analyze", "--what", "largest-bias", "--model", str(folder))
