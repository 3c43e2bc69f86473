"""More of `cases.py`: recipes of language modelling, `reluformer analyze` of what is no language model, and calls of the language
model (vocabulary of 53, 40 positions, hidden_size 24)."""

from __future__ import annotations

from .cases import Case, expressions, refusals

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

a text in UTF-16 without a byte order mark
train --config text.yaml --data.corpus.paths utf16_unmarked.txt
utf16_unmarked.txt: is UTF-16 or no text at all by its NUL bytes; expected UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`

a table in place of a text, for a language model
train --config text.yaml --data.corpus.paths pairs.csv
pairs.csv: is a table by its name (.csv); expected text, one sentence a line: give text files, or a table by data.….dataset

a text as .gz that is no gzip
train --config text.yaml --data.corpus.paths not_gzip.gz
not_gzip.gz: named .gz, but its content is not gzip; rename it or compress it

a text as .gz that is cut off
train --config text.yaml --data.corpus.paths truncated.gz
truncated.gz: broken gzip data after line …; fetch the file again

a text as .gz that is damaged
train --config text.yaml --data.corpus.paths corrupt.gz
corrupt.gz: broken gzip data after line …; fetch the file again

a text too small for a vocabulary
train --config text.yaml --data.corpus.paths two_lines.txt
data: the texts are too small to train BPE: no two bytes of a word meet 2 times

a text shorter than a context
train --config text.yaml --data.corpus.paths good.de
train: … tokens are less than one context of 16; give more text, or lower data.max_length

a context longer than positions
train --config text.yaml --data.max_length 64
data.max_length: 64 is more than model.max_position_embeddings 32; lower the first or raise the second

a context of one token
train --config text.yaml --data.max_length 1
data.max_length: a context of 1 predicts nothing; give at least 2

a vocabulary without room for merges
train --config text.yaml --tokenizer.vocab_size 200
tokenizer.vocab_size: 200 leaves no room for BPE merges beside 258 bytes and special tokens; give at least 259

names of documents for another number of lines
train --config text.yaml --data.corpus.paths good.de --data.corpus.documents two_lines.txt
data: good.de has 3 lines and two_lines.txt 2; expected the name of a document for each line

a document whose lines do not stand together
train --config text.yaml --data.corpus.paths good.de --data.corpus.documents again.txt
again.txt:3: document 'one' begins again after 'two'; it was first at again.txt:1. …must stand together

names of documents for several files
train --config text.yaml --data.corpus.paths [good.de,good.en] --data.corpus.documents good.en
data.corpus.documents: names the documents of one file, data.corpus.paths are several; give one

a choice of documents without their names
train --config text.yaml --data.corpus.only [one]
data.corpus.only: chooses documents, but data.corpus.documents names no file of them

a choice of a document that is not there
train --config text.yaml --data.corpus.paths good.de --data.corpus.documents good.en --data.corpus.only [four]
data.train.only: no document 'four' in good.en; name one that is there

a data set that is not there
train --config text.yaml --data.corpus.paths null --data.corpus.dataset.path ./nowhere
data set './nowhere' (name None, split 'train') cannot be loaded: …

a data set without the column
train --config text.yaml --data.corpus.paths null --data.corpus.dataset.path text_set
data: text_set has no column 'text'; give column as one of content

a share that is no number
train --config text.yaml --data.split.test nan
data.split…test…nan

a share below 0
train --config text.yaml --data.split.test -0.1
data.split.test: -0.1 must be a share of at least 0 and below 1, such as 0.02

shares that leave nothing
train --config text.yaml --data.split.test 0.5 --data.split.validation 0.5
data.split: {'validation': 0.5, 'test': 0.5} leaves nothing to train on; give shares whose sum is below 1

a split without texts
train --config text.yaml --evaluation.splits [test]
evaluation.splits: the recipe's data has no test split; name others or give its files

a split that does not exist, for a language model
train --config text.yaml --evaluation.splits [dev]
evaluation.splits: 'dev' is not a split to evaluate; choose of validation, test

an evaluation of no contexts at once
train --config text.yaml --evaluation.batch_size 0
evaluation.batch_size: 0 must be at least 1

an unknown preset
train --config text.yaml --model.preset gpt3
model: preset='gpt3' is unknown; choose one of gpt2, normalization_free, llama_relu

an unknown field of the language model
train --config text.yaml --model.hidden_sise 16
model: 'hidden_sise' is not a field of ReLUFormerDecoderConfig; did you mean hidden_size or hidden_act?

a field that follows from the tokenizer
train --config text.yaml --model.vocab_size 300
model.vocab_size: follows from the tokenizer; leave it out (see tokenizer.vocab_size)

heads that do not divide the width of the language model
train --config text.yaml --model.num_attention_heads 3
model: hidden_size=16 must be a multiple of num_attention_heads=3, or head_dim be given

heads of keys that do not divide those of queries
train --config text.yaml --model.num_key_value_heads 3
model: num_attention_heads=2 must be a multiple of num_key_value_heads=3

an activation of the FFN that does not exist
train --config text.yaml --model.hidden_act swishy
model: hidden_act='swishy' is not supported; choose one of …relu…

a regulariser of softmax attention
train --config text.yaml --model.regularization_weight 0.01
model: regularization_weight=0.01 needs point-wise weights that are never negative (…attention_activation is 'softmax'. Use 0

an option of translation in a recipe for texts
train --config text.yaml --batching.tokens_per_batch 300
…batching

label smoothing of the Trainer
train --config text.yaml --training.label_smoothing_factor 0.1
training.label_smoothing_factor: 0.1 would have no effect here; set model.label_smoothing: …

metrics of texts, batch by batch
train --config text.yaml --training.batch_eval_metrics true
training.batch_eval_metrics: True would have no effect here; an evaluation of texts sums the loss, and keeps no …

a tokenizer that is not there
train --config text.yaml --tokenizer.path ./nowhere
tokenizer.path: './nowhere': no such folder; give the folder of a model, or a repository id on the Hub

a vocabulary beside a model to start from
train --config text.yaml --initialize_from language_model
tokenizer: comes with the model of initialize_from, whose embeddings were made for it; leave the section out

a model of translation to start from
train --config text.yaml --tokenizer.vocab_size 8000 --initialize_from model
initialize_from: model: is a 'reluformer' model; a reluformer_decoder checkpoint is needed

another size than that of the model to start from
train --config text.yaml --tokenizer.vocab_size 8000 --initialize_from language_model --model.hidden_size 32
model: hidden_size: 32 does not fit the weights, made for 16

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

a list of files that is not there
train --config text.yaml --data.corpus.paths null --data.corpus.packages.names [tqdm] --data.corpus.packages.listed nowhere.txt
data: packages.listed: no file 'nowhere.txt'; give the path of a list, or leave it out

a list of files that is none
train --config text.yaml --data.corpus.paths null --data.corpus.packages.names [tqdm] --data.corpus.packages.listed good.de
good.de: is no list of a corpus: its first line must be `# checksum …`; write it anew with

a language model to translate with
translate --model language_model eins
language_model: holds a reluformer_decoder model, which is no encoder-decoder; give a translation model

a language model that is converted already
convert --from language_model --to converted
language_model: is a ReLUFormer already; name the attention it shall have: …

a figure that a decoder alone does not have
analyze --what top-p --model language_model --text good.de
--what: top-p cannot be taken of language_model, a decoder alone; choose of entropy, entropy-share, likelihood, ffn-sparsity, …

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

LANGUAGE_MODEL: list[Case] = expressions("""
token ids that are no integers, for a language model
decoder(tokens.float())
ValueError: input_ids must be integers (int64 or int32) of the shape (batch, length); got torch.float32 (2, 7).

tokens without a batch
decoder(tokens[0])
ValueError: input_ids must be integers (int64 or int32) of the shape (batch, length); got torch.int64 (7,).

a token beyond the vocabulary
decoder(torch.full((1, 3), 53))
IndexError: input_ids holds the id 53; the vocabulary of 53 tokens has the ids 0 to 52.

a negative token
decoder(torch.full((1, 3), -1))
IndexError: input_ids holds the id -1; the vocabulary of 53 tokens has the ids 0 to 52.

a label beyond the vocabulary of a language model
decoder(tokens, labels=torch.full((2, 7), 53))
IndexError: labels holds the id 53; the vocabulary of 53 tokens has the ids 0 to 52, and -100 stands for no target.

a negative label of a language model
decoder(tokens, labels=torch.full((2, 7), -1))
IndexError: labels holds the id -1; the vocabulary of 53 tokens has the ids 0 to 52, and -100 stands for no target.

labels of another length than the tokens
decoder(tokens, labels=tokens[:, 1:])
ValueError: labels must have the shape (batch, length) of the input, (2, 7); got (2, 6).

labels of a language model that are no integers
decoder(tokens, labels=tokens.float())
ValueError: labels must be integers (int64) of the shape (batch, target); got torch.float32 (2, 7).

labels of -100 alone, of a language model: the loss is 0
float(decoder(tokens, labels=torch.full((2, 7), -100)).loss)
result: 0.0

labels beside the logits of the last position alone
decoder(tokens, labels=tokens, logits_to_keep=1)
ValueError: labels need the logits of all positions; leave logits_to_keep out, or labels.

no logits and no labels
decoder(tokens, skip_logits=True)
ValueError: skip_logits=True leaves only the loss, which needs labels; none were given. Give labels.

no sequences
decoder(tokens[:0])
ValueError: input_ids or inputs_embeds of (batch, length) = (0, 7) are empty

sequences of no tokens
decoder(tokens[:, :0])
ValueError: input_ids or inputs_embeds of (batch, length) = (2, 0) are empty

neither tokens nor embeddings
decoder(attention_mask=torch.ones(2, 7))
ValueError: Give exactly one of input_ids and inputs_embeds.

tokens and embeddings
decoder(tokens, inputs_embeds=torch.zeros(2, 7, 24))
ValueError: Give exactly one of input_ids and inputs_embeds.

embeddings of another width than the language model's
decoder(inputs_embeds=torch.zeros(2, 7, 8))
ValueError: inputs_embeds must have the shape (batch, length, hidden_size) = (batch, length, 24); got (2, 7, 8).

NaN in the embeddings of the second of two texts: it alone is NaN
decoder(inputs_embeds=torch.stack([torch.zeros(7, 24), torch.full((7, 24), torch.nan)])).logits.isnan().any(2).any(1).tolist()
result: [False, True]

a text of padding alone: its output is finite
bool(decoder(tokens, attention_mask=second_hidden).logits.isfinite().all())
result: True

more tokens than the language model has positions
decoder(torch.ones(1, 41, dtype=torch.long))
ValueError: A sequence of 41 tokens is longer than max_position_embeddings=40

text beyond the positions
decoder.generate(tokens, min_new_tokens=99, max_new_tokens=100)
ValueError: A sequence of 41 tokens is longer than max_position_embeddings=40

a mask of another length than the tokens
decoder(tokens, attention_mask=torch.ones(2, 6))
ValueError: attention_mask must cover the 0 tokens in the cache and the 7 given ones, (batch, keys) = (2, 7); got (2, 6).

an additive mask, for a language model
decoder(tokens, attention_mask=torch.zeros(2, 7).fill_(-1e4))
ValueError: A two-dimensional attention mask holds 1 for real tokens and 0 for padding; this one has other values.

an additive mask of four dimensions, for a language model
decoder(tokens, attention_mask=torch.zeros(2, 1, 7, 7))
ValueError: A four-dimensional attention mask must be boolean, True where the key is visible; got torch.float32.

a mask without the tokens of the cache
decoder(tokens[:, :1], attention_mask=torch.ones(2, 1), past_key_values=decoder(tokens, use_cache=True).past_key_values)
ValueError: attention_mask must cover the 7 tokens in the cache and the 1 given ones, (batch, keys) = (2, 8); got (2, 1).

positions of another length
decoder(tokens, position_ids=torch.arange(6)[None])
ValueError: position_ids must be integers of the shape (batch, length) = (2, 7) or (1, 7); got torch.int64 (1, 6).

positions that are no integers
decoder(tokens, position_ids=torch.arange(7.0)[None])
ValueError: position_ids must be integers of the shape (batch, length) = (2, 7) or (1, 7); got torch.float32 (1, 7).

a negative position
decoder(tokens, position_ids=torch.arange(-1, 6)[None])
ValueError: position_ids holds the position -1; they count from 0.

segments of another length
decoder(tokens, segment_ids=torch.ones(2, 6, dtype=torch.long))
ValueError: The segment ids of the queries must have the shape (batch, queries) = (2, 7); got (2, 6).

an argument that the language model does not have
decoder(tokens, token_type_ids=tokens)
TypeError: ReLUFormerForCausalLM takes no token_type_ids; leave it out.

weights that only eager returns
decoder(tokens, output_attentions=True)
ValueError: output_attentions=True needs attn_implementation='eager'; 'fused' never holds the weights.

an implementation that does not compute the ReLU attention of a language model
decoder.set_attn_implementation("sdpa")
ValueError: is not supported by attention_activation='relu'; choose one of fused, eager.

an unknown field of the language model's configuration
ReLUFormerDecoderConfig.from_preset("gpt2", n_embd=16)
ValueError: 'n_embd' is not a field of ReLUFormerDecoderConfig

norms of another place
ReLUFormerDecoderConfig(normalization="post")
ValueError: normalization='post' is not supported; choose one of pre, none.

a norm that does not exist
ReLUFormerDecoderConfig(norm_type="batch_norm")
ValueError: norm_type='batch_norm' is not supported; choose one of layer_norm, rms_norm.

positions that do not exist
ReLUFormerDecoderConfig(position_embedding="alibi")
ValueError: position_embedding='alibi' is not supported; choose one of learned, rotary.

an FFN that does not exist
ReLUFormerDecoderConfig(ffn_type="moe")
ValueError: ffn_type='moe' is not supported; choose one of mlp, glu, dglu.

rotary settings beside learned positions
ReLUFormerDecoderConfig(rope_theta=1e6)
ValueError: rope_theta=1000000.0 needs position_embedding='rotary'; it is 'learned'.

rotary positions of a part of the head
ReLUFormerDecoderConfig(position_embedding="rotary", partial_rotary_factor=0.5)
ValueError: partial_rotary_factor is not supported: rotary positions turn whole heads. Leave it out.

rotary positions that do not exist
ReLUFormerDecoderConfig(position_embedding="rotary", rope_parameters={"rope_type": "spiral"})
ValueError: rope_type='spiral' is unknown; choose one of default, linear, dynamic, yarn, longrope, llama3, proportional.

two names of one field, with two values
ReLUFormerDecoderConfig(hidden_act="relu", activation_function="gelu")
ValueError: activation_function='gelu' is another name of hidden_act, which is 'relu'; give one of the two.

rotary positions of an odd head
ReLUFormerDecoderConfig(position_embedding="rotary", head_dim=7)
ValueError: head_dim=7 must be even for position_embedding='rotary', which turns pairs.

a start without spread
ReLUFormerDecoderConfig(init_std=0)
ValueError: init_std=0 must be a finite number above 0.

a rate of dropout that leaves nothing
ReLUFormerDecoderConfig(dropout=1.0)
ValueError: dropout=1.0 must lie in [0, 1).

no layers
ReLUFormerDecoderConfig(num_hidden_layers=0)
ValueError: num_hidden_layers=0 must be at least 1.

a prompt with more tokens than positions, to a pipeline
pipeline("text-generation", model="language_model")("eins " * 50, max_new_tokens=2)
ValueError: A sequence of 201 tokens is longer than max_position_embeddings=32
""")
