"""More of `cases.py`: recipes of language modelling, and `reluformer analyze` of what is no language model."""

from __future__ import annotations

from .cases import Case, refusals

LANGUAGE_MODELS: list[Case] = refusals("""
no texts
train --config text.yaml --data.corpus null
data: give exactly one of corpus, train/validation/test; given: none of them

a corpus and splits
train --config text.yaml --data.train.paths good.de
data: give exactly one of corpus, train/validation/test; given: corpus and train/validation/test

texts from two places
train --config text.yaml --data.corpus.packages.names [numpy]
data.corpus: give exactly one of paths, packages, dataset; given: paths and packages

a text that is not there
train --config text.yaml --data.corpus.paths nowhere.txt
data: file not found: nowhere.txt

a folder without such files
train --config text.yaml --data.corpus.paths model --data.corpus.pattern *.txt
model: holds no file '*.txt'; give another folder or data.….pattern

a text that is given twice
train --config text.yaml --data.corpus.paths [good.de,good.de]
data: 'good.de' is there twice, in good.de too; give each file once

an empty text
train --config text.yaml --data.corpus.paths empty.txt
data: empty corpus: no document of the training split holds text; give files with text in UTF-8

a text that is not UTF-8
train --config text.yaml --data.corpus.paths latin1.txt
data: empty corpus: no document of the training split holds text; give files with text in UTF-8

a text in UTF-16
train --config text.yaml --data.corpus.paths utf16.txt
utf16.txt: is UTF-16 by its byte order mark; expected UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`

a text too small for a vocabulary
train --config text.yaml --data.corpus.paths two_lines.txt
data: the texts are too small to train BPE: no two bytes of a word meet 2 times

a text shorter than a context
train --config text.yaml --data.corpus.paths good.de
train: … tokens are less than one context of 16; give more text, or lower data.max_length

a context longer than positions
train --config text.yaml --data.max_length 64
data.max_length: 64 is more than model.max_position_embeddings 32; lower the first or raise the second

a vocabulary without room for merges
train --config text.yaml --tokenizer.vocab_size 200
tokenizer.vocab_size: 200 leaves no room for BPE merges beside 258 bytes and special tokens; give at least 259

names of documents for another number of lines
train --config text.yaml --data.corpus.paths good.de --data.corpus.documents two_lines.txt
data: good.de has 3 lines and two_lines.txt 2; expected the name of a document for each line

shares that leave nothing
train --config text.yaml --data.split.test 0.5 --data.split.validation 0.5
data.split: {'validation': 0.5, 'test': 0.5} leaves nothing to train on; give shares whose sum is below 1

a split without texts
train --config text.yaml --evaluation.splits [test]
evaluation.splits: the recipe's data has no test split; name others or give its files

stages of a schedule without their ends
train --config text.yaml --zeros.l1_weights [0.1]
zeros: 1 l1_weights and 0 l1_steps; give the end of each stage

more activations than an FFN has
train --config text.yaml --model.ffn_top_k 5000
model: ffn_top_k=5000 must be from 1 to …, the width of the FFN

a pattern for another number of layers
train --config text.yaml --model.activation_sparsity_pattern [0.9,0.9,0.9,0.9,0.9]
model: activation_sparsity_pattern has 5 numbers; give one number, or …

a package that is not installed
train --config text.yaml --data.corpus.paths null --data.corpus.packages.names [no-such-package]
data: the package no-such-package is not installed; install it (pip install no-such-package), or leave it out

a list of files that is none
train --config text.yaml --data.corpus.paths null --data.corpus.packages.names [tqdm] --data.corpus.packages.listed good.de
good.de: is no list of a corpus: its first line must be `# checksum …`; write it anew with

a figure that a decoder alone does not have
analyze --what top-p --model language_model --text good.de
--what: top-p cannot be taken of language_model, a decoder alone; choose of entropy, entropy-share, ffn-sparsity, ppl-sparsity

pictures for a model of texts, to analyse
analyze --what ffn-sparsity --model language_model --images pictures
--images: language_model is no classifier of pictures; give --text

an impossible rise of the perplexity
analyze --what ppl-sparsity --model language_model --text good.de --ppl_increase 0
--ppl_increase: [0.0] must be percentages above 0

a context longer than positions, to analyse
analyze --what entropy --model language_model --text good.de --context 64
--context: 64 tokens; give 2 to 32, the positions of the model

a context for a model that translates
analyze --what entropy --model model --text good.de --context 8
--context: is for decoder-only models, and model is none; leave it out

nothing to analyse
analyze --what entropy --model language_model --text empty.txt
--text: 'empty.txt' is empty; give a text
""")
