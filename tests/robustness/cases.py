"""Wrong input and what its user sees, as data: `test_bad_input.py` runs every case, and `docs/errors.md` is written
from them.

python -m tests.robustness.cases writes docs/errors.md. The files that commands name are those of `malformed_files.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown import table

TABLE = Path(__file__).parents[2] / "docs" / "errors.md"
_BEGINNING = """\
# What wrong input does

Search this page for the words of your error message: the row says what was wrong. `…` stands for what differs between machines
and versions. A command ends with status 2 and one line on stderr, which begins with `reluformer: error:`. In Python, a mistake
raises an exception; the `UserError` of the training code is a `ValueError`.

- Weights are read from safetensors alone; pickles are refused.
- Code in a model's folder or repository is never executed: nothing here sets `trust_remote_code`.
- A recipe is data: YAML tags and names of classes are refused.
- The model of these cases has 40 tokens, 64 positions and `d_model` 16, on a CPU. A GPU reports an id outside the vocabulary as a
  device-side assertion.

`make error-table` writes this page from [the cases that the tests run](../tests/robustness/cases.py) with
[these files](../tests/robustness/malformed_files.py).
"""


@dataclass(frozen=True)
class Case:
    """One wrong input.

    Args:
        given: what is wrong, in words.
        call: a command line that begins with `reluformer`, or a Python expression over the names of
            `test_bad_input.py`.
        outcome: `exit 2`, the name of an exception, or `result`: the text of the expression's value.
        says: the message or result; `…` stands for a part that differs between machines and versions.
    """

    given: str
    call: str
    outcome: str
    says: str

    @property
    def is_command(self) -> bool:
        return self.call.startswith("reluformer")

    def matches(self, found: str) -> bool:
        """Whether `says` is in `found`, with anything in the place of `…`."""
        return re.search(".*".join(map(re.escape, self.says.split("…"))), found, re.DOTALL) is not None


def refusals(text: str) -> list[Case]:
    """Commands with exit status 2, from blocks of three lines: given, the rest of the command, message."""
    blocks = [block.strip().split("\n") for block in text.strip().split("\n\n")]
    return [Case(given, f"reluformer {call}", "exit 2", says) for given, call, says in blocks]


def expressions(text: str) -> list[Case]:
    """Expressions, from blocks of three lines: given, expression, outcome and message with a colon between."""
    blocks = [block.strip().split("\n") for block in text.strip().split("\n\n")]
    return [Case(given, call, *end.split(": ", 1)) for given, call, end in blocks]


CORPORA = refusals("""
files of different lengths
train --config good.yaml --data.train.target two_lines.txt
train: parallel files must have the same number of lines, found 3 in good.de and 2 in two_lines.txt

UTF-16
train --config good.yaml --data.train.source utf16.txt
utf16.txt: holds NUL bytes, as UTF-16 and compressed files do; expected text in UTF-8…

a table in place of a text
train --config good.yaml --data.train.source pairs.csv
pairs.csv: is a table by its name (.csv); expected text, one sentence a line: give a table as data.dataset

.gz that is cut off
train --config good.yaml --data.train.source truncated.gz
truncated.gz: cannot be read (…

a column that is not there
train --config good.yaml --data.train null --data.dataset.path csv --data.dataset.files '{train: columns.csv}'
csv train: no column 'translation.de' or 'de'; there are: german, english; set data.dataset.source_column

semicolons in place of commas
train --config good.yaml --data.train null --data.dataset.path csv --data.dataset.files '{train: semicolons.csv}'
csv train: no column…there are: de;en; set data.dataset.source_column, or options: {sep: …}
""") + expressions("""
a line of a corpus that is not UTF-8
read_parallel_files("latin1.txt", "good.en", name="train")[1].summary()
result: train: 2 of 3 pairs kept; skipped 1 × source is not UTF-8 (first: pair 2)

line ends and byte order mark of Windows
list(read_parallel_files("windows.txt", "good.en", name="train")[0]["source"])
result: ['eins', 'zwei', 'drei']
""")

TRAININGS = refusals("""
a number of updates below zero
train --config good.yaml --training.max_steps -5
training.max_steps: -5 is no number of updates; give one, or -1 and training.num_train_epochs

a seed beyond 32 bits
train --config good.yaml --training.seed 4294967296
training.seed: 4294967296 must be at most 4294967295

a weight decay below zero
train --config good.yaml --training.weight_decay -1
training.weight_decay: -1.0 must be at least 0

an argument that the optimizer cannot take
train --config good.yaml --training.adam_beta1 1.5
training.optim adamw_torch…: Invalid beta parameter at index 0: 1.5

arguments of the optimizer that are no list of names and values
train --config good.yaml --training.optim_args betas
training.optim_args: 'betas' is no list such as 'name=value,other=value'

a schedule without what it needs
train --config good.yaml --training.lr_scheduler_type cosine_with_min_lr
training.lr_scheduler_type cosine_with_min_lr: …min_lr…

an argument that the schedule does not have
train --config good.yaml --training.lr_scheduler_kwargs '{foo: 1}'
training.lr_scheduler_type linear with lr_scheduler_kwargs {'foo': 1}: …unexpected keyword argument 'foo'

a value that the schedule cannot take once it has warmed up
train --config warm_up.yaml --training.lr_scheduler_kwargs '{timescale: 0}'
training.lr_scheduler_type inverse_sqrt with lr_scheduler_kwargs {'timescale': 0}: …division by zero

a log level that does not exist
train --config good.yaml --training.log_level loud
training.log_level: 'loud' is no level; choose one of detail, debug, info, warning, error, critical, passive

a card of a folder whose record is cut off
card --model damaged_record
damaged_record/training_record.json: is damaged (…); restore it, or delete it

more positions than memory
train --config good.yaml --model.max_position_embeddings 1000000000000000
model: …

an argument that Accelerate does not have
train --config good.yaml --training.accelerator_config '{foo: 1}'
training: …'foo'

a checkpoint without the state of the optimizer
train --config good.yaml --name no_optimizer
runs/no_optimizer/checkpoint-1: its file optimizer.pt is missing, so that the run would end with other weights; copy the…

a checkpoint of which a file is cut off
train --config good.yaml --name cut_optimizer
runs/cut_optimizer/checkpoint-1: its file optimizer.pt has 3 bytes, and had 7 when it was written, so that the run would…

a checkpoint whose list of files is cut off
train --config good.yaml --name cut_run_state
runs/cut_run_state/checkpoint-1/run_state.json: is damaged (…); copy the checkpoint again, or move it away

a training record that is cut off
train --config good.yaml --name cut_record
runs/cut_record/training_record.json: is damaged (…); restore it, or remove it: the command of the training writes it anew

a recipe of a run that is cut off
evaluate --run runs/cut_recipe
runs/cut_recipe/recipe.yaml…
""")

RECIPES = refusals("""
an unknown key
train --config unknown_key.yaml
unknown_key.yaml: there is no key 'modle'; did you mean model?

a YAML tag that would execute a command
train --config python_object.yaml
python_object.yaml, line 1: is no YAML: could not determine a constructor for the tag …os.system…

the path of a class, which would be imported
train --config class_path.yaml
class_path.yaml: initialize_from: a recipe names no classes; leave class_path out
""")

MODELS = refusals("""
no config.json
translate --model no_config eins
no_config: its model cannot be loaded: …config.json…

weights that lack a tensor
translate --model lacking_weights eins
lacking_weights: the weights lack 1 tensors of the model, the first is model.encoder.layers.0.fc1.weight

weights that are cut off
translate --model truncated_weights eins
truncated_weights: its model cannot be loaded: …

pickled weights
translate --model pickled_weights eins
pickled_weights: its weights are pickled (pytorch_model.bin), and a pickle can execute code: refused.

a model with code of its own
translate --model own_code eins
own_code: its model cannot be loaded: …

no tokenizer
translate --model no_tokenizer eins
no_tokenizer: its tokenizer cannot be loaded: there is no tokenizer.json in it: …

the name of a model without --model
translate tatoeba-en-de "Where is the station?"
translate: 'tatoeba-en-de' is the name of a model, given as a text; write --model tatoeba-en-de

a tokenizer.json that is cut off
translate --model cut_tokenizer eins
cut_tokenizer: its tokenizer cannot be loaded: …

a tokenizer without its tokenizer_config.json
translate --model no_tokenizer_config eins
no_tokenizer_config: its tokenizer names no pad_token; restore tokenizer_config.json, or name one there

a record of the Moses step that is none
translate --model moses_of_nothing eins
tokenizer_config.json: moses: {'language': 'de'} is no record of a Moses step; expected source_language and target_language

eos_token_id in config.json that is no number
translate --model eos_of_letters eins
eos_of_letters: its model cannot be loaded: …'eos_token_id'…

eos_token_id in generation_config.json that is no number
translate --model generation_eos_of_letters eins
generation_eos_of_letters: generation_config.json: eos_token_id is 'a'; expected the number of one of the…

decoder_start_token_id in generation_config.json beyond the vocabulary
translate --model generation_start_beyond eins
generation_start_beyond: generation_config.json: decoder_start_token_id is 1000000; expected the number of one of the…

a card of a folder whose record is cut off
card --model damaged_record
damaged_record/training_record.json: is damaged (…); restore it, or delete it

more positions than memory
translate --model positions_beyond_memory eins
positions_beyond_memory: its model cannot be loaded: …
""")

ARGUMENTS = refusals("""
a model that is neither here nor in the package
translate --model tatoeba-de-fr eins
'tatoeba-de-fr': no such folder here, and no model of the package (…); give one of these, a folder, or an id on the Hub with its

an unknown option
translate --model model --beams 3
unrecognized arguments: --beams…; see `reluformer translate --help`

a line with more tokens than the model has positions
translate --model model --input long_line.txt
1 of 1 sources hold a sentence with more tokens than the 64 positions of the model: number 1 (… tokens), counted from 1; shorten
""")

CALLS = expressions("""
a token id beyond the vocabulary
model(input_ids=torch.full((1, 3), 40), decoder_input_ids=target[:1])
IndexError: input_ids holds ids from 40 to 40; the vocabulary of 40 tokens has 0 to 39.

labels of -100 alone: the loss is 0
float(model(input_ids=source, labels=torch.full((2, 5), -100)).cross_entropy)
result: 0.0

an argument that the model does not have
model(input_ids=source, labels=target, attention_maskk=source)
TypeError: ReLUFormerForConditionalGeneration takes no attention_maskk; did you mean attention_mask?

NaN in the embeddings of the second sequence: it alone is NaN
model(inputs_embeds=nan_in_second, decoder_input_ids=target).logits.isnan().any(2).any(1).tolist()
result: [False, True]

a sequence of padding alone: its output is finite
bool(model(input_ids=source, attention_mask=second_hidden, labels=target).logits.isfinite().all())
result: True

a mask of another length
model(input_ids=source, attention_mask=torch.ones(2, 6), labels=target)
ValueError: An attention mask must have the shape (batch, keys) = (2, 7) or (batch, 1, queries, keys) = (2, 1, 7, 7); got (2, 6).

an additive mask
model(input_ids=source, attention_mask=torch.zeros(2, 7).fill_(-1e4), labels=target)
ValueError: A two-dimensional attention mask holds 1 for real tokens and 0 for padding; this one has other values.
""")

GROUPS: dict[str, list[Case]] = {
    "Corpora": CORPORA,
    "Recipes": RECIPES,
    "Trainings": TRAININGS,
    "Models and tokenizers": MODELS,
    "Arguments of commands": ARGUMENTS,
    "Calls from Python": CALLS,
}


def error_table() -> str:
    """The text of docs/errors.md."""
    lines = [_BEGINNING]
    for title, cases in GROUPS.items():
        header = ("given", "call", "outcome", "what the user sees")
        lines += [f"## {title}", "", *table(header, map(_cells, cases)), ""]
    return "\n".join(lines)


def _cells(case: Case) -> Iterator[str]:
    yield case.given
    yield _code(case.call)
    yield case.outcome
    yield _code(case.says)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


if __name__ == "__main__":
    TABLE.write_text(error_table(), encoding="utf-8")
    print(TABLE)
