"""Wrong input and what its user sees, as data: `test_bad_input.py` runs every case, `docs/errors.md` is generated from it.

The files that commands name are those of `malformed_files.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One wrong input.

    Args:
        given: what is wrong, in words.
        call: a command line that begins with `reluformer`, or a Python expression over the names of `test_bad_input.py`.
        outcome: `exit 2`, `exit 0`, the name of an exception, or `result`: the text of the expression's value.
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


def refusals(base: str) -> list[Case]:
    """Cases of a command with exit status 2, from blocks of three lines: given, the rest of the command, message."""
    blocks = [block.strip().split("\n") for block in base.strip().split("\n\n")]
    return [Case(given, f"reluformer {call}".strip(), "exit 2", says) for given, call, says in blocks]


def expressions(base: str) -> list[Case]:
    """Cases of an expression, from blocks of three lines: given, expression, outcome and message with a colon between."""
    cases = []
    for block in base.strip().split("\n\n"):
        given, call, end = block.strip().split("\n")
        outcome, _, says = end.partition(": ")
        cases.append(Case(given, call, outcome, says))
    return cases


TEXT = [
    *refusals("""
an empty file beside one with lines
train --config good.yaml --data.train.source empty.txt
train: parallel files must have the same number of lines, found 0 in empty.txt and 3 in good.en: empty.txt:1 is missing

two empty files
train --config good.yaml --data.train.source empty.txt --data.train.target empty_too.txt
empty corpus: train: 0 of 0 pairs kept; expected at least one usable pair

blank lines alone
train --config good.yaml --data.train.source blank.txt
empty corpus: train: 0 of 3 pairs kept; skipped 3 × source empty (first: blank.txt:1); expected at least one usable pair

files of different lengths
train --config good.yaml --data.train.target two_lines.txt
train: parallel files must have the same number of lines, found 3 in good.de and 2 in two_lines.txt: two_lines.txt:3 is missing

UTF-16
train --config good.yaml --data.train.source utf16.txt
utf16.txt: is UTF-16 by its byte order mark; expected UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`

UTF-16 without a byte order mark
train --config good.yaml --data.train.source utf16_unmarked.txt
utf16_unmarked.txt: is UTF-16 or no text at all by its NUL bytes; expected UTF-8: convert it

a table in place of a text
train --config good.yaml --data.train.source pairs.csv
pairs.csv: is a table by its name (.csv); expected text, one sentence a line: give a table as data.tables

the same file as source and target
train --config good.yaml --data.train.target ./good.de
data.train: source and target are the same file, good.de; expected the two sides of a corpus: give the file of the translations

.gz that is not gzip
train --config good.yaml --data.train.source not_gzip.gz
not_gzip.gz: named .gz, but its content is not gzip; rename it or compress it

.gz that is cut off
train --config good.yaml --data.train.source truncated.gz
truncated.gz: broken gzip data after line …; fetch the file again

.gz with damaged content
train --config good.yaml --data.train.source corrupt.gz
corrupt.gz: broken gzip data after line …; fetch the file again

a folder in place of a text
train --config good.yaml --data.train.source a_folder
train: expected a text file (plain, .gz or .zst), found a folder: a_folder

a file that does not exist
train --config good.yaml --data.train.source nowhere.txt
train: file not found: nowhere.txt

a line that is not UTF-8, to translate
translate --model model --input latin1.txt
--input: 'latin1.txt', line 2: not UTF-8 (invalid start byte)

UTF-16 to translate
translate --model model --input utf16.txt
--input: utf16.txt: is UTF-16 by its byte order mark; expected UTF-8

a table to translate
translate --model model --input pairs.csv
pairs.csv: is a table by its name (.csv); expected text, one sentence a line: write the column to translate into a text file

.gz to translate that is cut off
translate --model model --input truncated.gz
--input: truncated.gz: broken gzip data after line …; fetch the file again

a folder to translate
translate --model model --input a_folder
--input: a_folder: cannot be read: Is a directory

a line with more tokens than the model has positions
translate --model model --input long_line.txt
1 of 1 sources have more tokens than the 64 positions of the model: number 1 (… tokens), counted from 1; shorten them, or choose

texts and a file at once
translate --model model --input good.de eins
translate: give texts or --input, not both
"""),
    Case("an empty file to translate", "reluformer translate --model model --input empty.txt", "exit 0", ""),
    *expressions("""
a line of a corpus that is not UTF-8
read_parallel_files("latin1.txt", "good.en", name="train")[1].summary()
result: train: 2 of 3 pairs kept; skipped 1 × source is not UTF-8 (first: latin1.txt:2)

NUL characters, which are characters like any other
read_parallel_files("nul.txt", "good.en", name="train")[1].summary()
result: train: 3 of 3 pairs kept

line ends and byte order mark of Windows
list(read_parallel_files("windows.txt", "good.en", name="train")[0]["source"])
result: ['eins', 'zwei', 'drei']

something that is no text
Translator.from_pretrained("model", device="cpu")(["eins", None])
UserError: texts[1]: expected text, got NoneType
"""),
]

RECIPES = refusals("""
an empty file
train --config empty.yaml
empty.yaml: is empty; a recipe says at least name and data (`reluformer train --help`)

no mapping
train --config list.yaml
list.yaml: holds no keys; a recipe is a YAML mapping such as `name: mine`

a bracket that is not closed
train --config syntax.yaml
syntax.yaml, line 3: is no YAML: …

an unknown key
train --config unknown_key.yaml
Option 'modle' is not accepted; did you mean model

a value of a wrong type
train --config wrong_type.yaml
training.max_steps…many

a key that stands twice
train --config twice.yaml
twice.yaml, line 9: the key 'name' stands here twice

a YAML tag that would execute a command
train --config python_object.yaml
python_object.yaml, line 1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is refused

a YAML tag that names a function, as base
train --config python_name.yaml
python_name.yaml, line 1: the tag 'tag:yaml.org,2002:python/name:os.system' is refused; a recipe holds plain values alone

the path of a class, which would be imported
train --config class_path.yaml
class_path.yaml, line 9: the key 'class_path' is refused; a recipe names no classes

the name of a class in place of a section
train --config dotted_name.yaml
dotted_name.yaml, line 9: tokenizer is a section: expected keys, found a value

the name of a class in place of a section of the training arguments
train --config class_of_the_library.yaml
class_of_the_library.yaml, line 8: training.parallelism_config is a section: expected keys, found a value

a key with a dot
train --config dotted_key.yaml
dotted_key.yaml, line 9: the key 'tokenizer.vocab_size' has a dot; write its section around it

two recipes that stand on each other
train --config cycle_a.yaml
cycle_a.yaml: base: cycle_a.yaml stands on itself

an alias within what it stands for
train --config itself.yaml
itself.yaml: nests too deeply; a recipe has sections with keys, no more

3,000 brackets
train --config deep.yaml
deep.yaml: nests too deeply; a recipe has sections with keys, no more

aliases that stand for 100 million values
train --config billion.yaml
billion.yaml: stands for more than 100,000 values; a recipe has about a hundred

a NUL character
train --config nul.yaml
nul.yaml: is no YAML: …at character 8

bytes that are not UTF-8
train --config latin1.yaml
latin1.yaml: is not UTF-8 text (byte 7: invalid start byte); a recipe is a YAML file

a folder in place of a recipe
train --config a_folder
--config: no file 'a_folder'; give the path of a recipe, or the name of one of the package's: …

an unknown recipe
train --config dmeo
--config: no file 'dmeo'; give the path of a recipe, or the name of one of the package's: …

no recipe
train
train: give a recipe, such as `reluformer train mine.yaml`; see `reluformer train --help`

a logger that does not exist
train --config good.yaml --training.report_to paper
training.report_to: 'paper' cannot be used (paper is not supported, only …); install it, or set report_to to none

settings of an optimizer that are none
train --config good.yaml --training.optim_args fast
training.optim: …cannot be used (…); install what it needs, mend training.optim_args, or choose another one, such as adamw_torch

kernels that do not know the model
train --config good.yaml --training.use_liger_kernel true
training.use_liger_kernel: True would have no effect, since Liger has no kernels for this model; leave it out

checkpoints without the state of the training
train --config good.yaml --training.save_only_model true
training.save_only_model: true leaves checkpoints that a run cannot go on at; leave it out: the folder of the run holds …

a token in a recipe
train --config good.yaml --training.hub_token api_org_geheim
training.hub_token: would stand in the files of the run, and is not needed; leave it out, and set HF_TOKEN or run `hf auth login`
""")

CHECKPOINTS = refusals("""
no config.json
translate --model no_config eins
no_config: holds no config.json; give a folder written by save_pretrained

a config.json that is cut off
translate --model broken_config eins
broken_config: its model cannot be loaded: …

a config.json that is a list
translate --model list_config eins
list_config: its model cannot be loaded: …

an unknown model_type
translate --model unknown_type eins
unknown_type: its model cannot be loaded: …no-such-model…

a decoder alone
translate --model decoder_only eins
decoder_only: holds a gpt2 model, which is no encoder-decoder; give a translation model

a field of a wrong type in config.json
translate --model wrong_field eins
wrong_field: its model cannot be loaded: …d_model…

a model with code of its own
translate --model own_code eins
own_code: its model cannot be loaded: …

a folder that does not exist
translate --model ./nowhere eins
'./nowhere': no such folder; give the folder of a model, or a repository id on the Hub

a file in place of a folder
translate --model a_file eins
a_file: is a file; give the folder of a model

no weights
translate --model no_weights eins
no_weights: holds no weights, neither model.safetensors nor model.safetensors.index.json; give a complete model

weights that are cut off
translate --model truncated_weights eins
truncated_weights: its model cannot be loaded: …

weights that are no safetensors
translate --model no_safetensors eins
no_safetensors: its model cannot be loaded: …

weights of another model
translate --model foreign_weights eins
foreign_weights: the weights lack … tensors of the model, the first is …

weights that lack a tensor
translate --model lacking_weights eins
lacking_weights: the weights lack 1 tensors of the model, the first is model.encoder.layers.0.fc1.weight

a tensor of another shape
translate --model misshapen_weights eins
misshapen_weights: its model cannot be loaded: …

weights that are NaN
translate --model nan_weights eins
nan_weights: its weights are damaged: model.encoder.layers.0.fc1.weight holds NaN or infinity; take an earlier checkpoint

pickled weights
translate --model pickled_weights eins
pickled_weights: its weights are pickled (pytorch_model.bin), and a pickle can execute code: refused.

pickled weights to convert
convert --from pickled_weights --to converted --attention vanilla
pickled_weights: its weights are pickled (pytorch_model.bin), and a pickle can execute code: refused.

a model that is no run
evaluate --run model
--run: 'model' is not a run folder (no recipe.yaml in it)
""")

TOKENIZERS = refusals("""
no tokenizer
translate --model no_tokenizer eins
no_tokenizer: its tokenizer cannot be loaded: …

a tokenizer.json that is cut off
translate --model broken_tokenizer eins
broken_tokenizer: its tokenizer cannot be loaded: …

more pieces than the model has embeddings
translate --model large_tokenizer eins
large_tokenizer: its tokenizer has … pieces, its model embeddings for …; they do not belong together
""")
