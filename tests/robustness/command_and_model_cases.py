"""More of `cases.py`: arguments of commands, and calls of the model (vocabulary of 40, 64 positions, d_model 16)."""

from __future__ import annotations

from .cases import CHECKPOINTS, RECIPES, TEXT, TOKENIZERS, Case, expressions, refusals
from .language_cases import LANGUAGE_MODEL, LANGUAGE_MODELS
from .picture_cases import PICTURES, VISION_MODEL
from .table_cases import TABLES

ARGUMENTS = [
    Case(
        "no command", "reluformer", "exit 2", "the following arguments are required: command; see `reluformer --help`"
    ),
    *refusals("""
an unknown command
tarin
argument command: invalid choice: 'tarin'

an unknown option
translate --model model --beams 3
unrecognized arguments: --beams…; see `reluformer translate --help`

an option that is needed
translate eins
the following arguments are required: --model; see `reluformer translate --help`

an option without its value
translate --model
argument --model: expected one argument; see `reluformer translate --help`

an option of a recipe without its value
train --config good.yaml --training.max_steps
--training.max_steps…

a word for a number
translate --model model --num_beams two eins
argument --num_beams: invalid int value: 'two'; see `reluformer translate --help`

a number out of range
translate --model model --num_beams 0 eins
num_beams: 0 must be at least 1

NaN for a number
translate --model model --length_penalty nan eins
length_penalty: nan must be a finite number

NaN for a percentage
analyze --what top-p --model model --text good.de --top_p nan
--top_p: [nan] must be percentages above 0 and up to 100

no device
translate --model model --device gpu eins
device: 'gpu' is no device; give cpu, cuda or cuda:1

a device that computes nothing
translate --model model --device meta eins
device: 'meta' was asked for, but cannot be used here: …

a device that computes nothing, of an analysis
analyze --what anisotropy --model model --device meta
device: 'meta' was asked for, but cannot be used here: …

an implementation that does not exist
translate --model model --attn_implementation flash eins
model: its model cannot be loaded: …is not supported by attention_activation='relu'; choose one of fused, eager

output into a folder
translate --model model --output a_folder eins
--output: 'a_folder' is a folder; give a file

output into no folder
translate --model model --output nowhere/out.txt eins
--output: 'nowhere/out.txt' lies in no existing folder

output below a file
analyze --what variance-simulation --lengths 1 --samples 9 --output a_file/out
a_file/out: Not a directory

an unknown analysis
analyze --what entropie --model model --text good.de
--what: entropie is unknown; choose of entropy, entropy-share, likelihood, context, …

a folder that is not there
convert --from runs/nowhere --to converted
'runs/nowhere': no such folder; give the folder of a model, or a repository id on the Hub

a card of an impossible repository
card --run model --repo-id nowhere
--repo-id: 'nowhere' is no repository; give owner/name, for example me/my-model

an unknown attention
convert --from model --to converted --attention tanh
attention: 'tanh' is unknown; choose one of reluformer, vanilla, …

a verb that does not exist
study --list
command: invalid choice: 'study' …
"""),
]

MODEL = expressions("""
token ids that are no integers
model(input_ids=source.float(), labels=target)
ValueError: input_ids must be integers (int64 or int32) of the shape (batch, length); got torch.float32 (2, 7).

a sequence without a batch
model(input_ids=source[0], labels=target)
ValueError: input_ids must be integers (int64 or int32) of the shape (batch, length); got torch.int64 (7,).

a token id beyond the vocabulary
model(input_ids=torch.full((1, 3), 40), decoder_input_ids=target[:1])
IndexError: input_ids holds the id 40; the vocabulary of 40 tokens has the ids 0 to 39.

a negative token id
model(input_ids=torch.full((1, 3), -1), decoder_input_ids=target[:1])
IndexError: input_ids holds the id -1; the vocabulary of 40 tokens has the ids 0 to 39.

a target id beyond the vocabulary
model(input_ids=source, decoder_input_ids=torch.full((2, 3), 41))
IndexError: decoder_input_ids holds the id 41; the vocabulary of 40 tokens has the ids 0 to 39.

a label beyond the vocabulary
model(input_ids=source, labels=torch.full((2, 5), 40))
IndexError: labels holds the id 40; the vocabulary of 40 tokens has the ids 0 to 39, and -100 stands for no target.

a negative label other than -100
model(input_ids=source, labels=torch.full((2, 5), -1))
IndexError: labels holds the id -1; the vocabulary of 40 tokens has the ids 0 to 39, and -100 stands for no target.

labels that are no integers
model(input_ids=source, labels=target.float())
ValueError: labels must be integers (int64) of the shape (batch, target); got torch.float32 (2, 5).

labels without a batch
model(input_ids=source, labels=target[0])
ValueError: labels must be integers (int64) of the shape (batch, target); got torch.int64 (5,).

labels of another length than the decoder's input
model(input_ids=source, decoder_input_ids=target, labels=target[:, :4])
ValueError: labels must have the shape (batch, target) of the decoder's input, (2, 5); got (2, 4).

labels padded on the left
model(input_ids=source, labels=torch.tensor([[-100, 5], [6, 7]]))
ValueError: Labels are padded on the left.

more sources than targets
model(input_ids=source, labels=target[:1])
ValueError: Source and target must have the same number of sequences; got 2 and 1.

more sources than targets, without labels
model(input_ids=source, decoder_input_ids=target[:1])
ValueError: Source and target must have the same number of sequences; got 2 and 1.

an empty batch
model(input_ids=source[:0], labels=target[:0])
ValueError: are empty

sources of no tokens
model(input_ids=source[:, :0], labels=target)
ValueError: input_ids or inputs_embeds of (batch, length) = (2, 0) are empty

labels of no tokens
model(input_ids=source, labels=target[:, :0])
ValueError: labels of the shape (2, 0) are empty

more tokens than positions
model(input_ids=torch.ones(1, 65, dtype=torch.long), labels=target[:1])
ValueError: A sequence of 65 tokens is longer than max_position_embeddings=64

generation beyond the positions
model.generate(source, min_new_tokens=99, max_new_tokens=100)
ValueError: A sequence of 65 tokens is longer than max_position_embeddings=64

the same with a static cache
model.generate(source, min_new_tokens=99, max_new_tokens=100, cache_implementation="static")
ValueError: A sequence of 65 tokens is longer than max_position_embeddings=64

an argument that the model does not have
model(input_ids=source, labels=target, attention_maskk=second_hidden)
TypeError: ReLUFormerForConditionalGeneration takes no attention_maskk; did you mean attention_mask?

labels for a configuration without a start token
tiny_model(decoder_start_token_id=None)(source, labels=target)
ValueError: config.decoder_start_token_id is None, with which labels are shifted right: set it, or give decoder_input_ids.

labels for a configuration without a padding token
tiny_model(pad_token_id=None)(source, labels=target)
ValueError: config.pad_token_id is None, with which labels are shifted right: set it, or give decoder_input_ids.

neither ids nor embeddings
model(labels=target)
ValueError: Give exactly one of input_ids and inputs_embeds.

ids and embeddings
model(input_ids=source, inputs_embeds=torch.zeros(2, 7, 16), labels=target)
ValueError: Give exactly one of input_ids and inputs_embeds.

no target
model(input_ids=source)
ValueError: Give exactly one of decoder_input_ids and decoder_inputs_embeds.

embeddings of another width
model(inputs_embeds=torch.zeros(2, 7, 8), labels=target)
ValueError: inputs_embeds must have the shape (batch, length, d_model) = (batch, length, 16); got (2, 7, 8).

NaN in the embeddings of the second sequence: it alone is NaN
model(inputs_embeds=nan_in_second, decoder_input_ids=target).logits.isnan().any(2).any(1).tolist()
result: [False, True]

a sequence of padding alone: its output is finite
bool(model(input_ids=source, attention_mask=second_hidden, labels=target).logits.isfinite().all())
result: True

labels of -100 alone: the loss is 0
float(model(input_ids=source, labels=torch.full((2, 5), -100)).cross_entropy)
result: 0.0

a mask of another length
model(input_ids=source, attention_mask=torch.ones(2, 6), labels=target)
ValueError: An attention mask must have the shape (batch, keys) = (2, 7) or (batch, 1, queries, keys) = (2, 1, 7, 7); got (2, 6).

a mask of another batch
model(input_ids=source, attention_mask=torch.ones(3, 7), labels=target)
ValueError: An attention mask must have the shape (batch, keys) = (2, 7) or (batch, 1, queries, keys) = (2, 1, 7, 7); got (3, 7).

a mask without a batch
model(input_ids=source, attention_mask=torch.ones(7), labels=target)
ValueError: An attention mask must have the shape (batch, keys) = (2, 7) or (batch, 1, queries, keys) = (2, 1, 7, 7); got (7,).

an additive mask
model(input_ids=source, attention_mask=torch.zeros(2, 7).fill_(-1e4), labels=target)
ValueError: A two-dimensional attention mask holds 1 for real tokens and 0 for padding; this one has other values.

an additive mask of four dimensions
model(input_ids=source, attention_mask=torch.zeros(2, 1, 7, 7), labels=target)
ValueError: A four-dimensional attention mask must be boolean, True where the key is visible; got torch.float32.

a mask of the target that is too long
model(input_ids=source, decoder_input_ids=target, decoder_attention_mask=torch.ones(2, 9))
ValueError: An attention mask must have the shape (batch, keys) = (2, 5)

a mask of the target without the tokens in the cache
model(source, None, target[:, :1], torch.ones(2, 1), past_key_values=model(source, None, target, use_cache=True).past_key_values)
ValueError: decoder_attention_mask must cover the 5 tokens in the cache and the 1 given ones, (batch, keys) = (2, 6); …

packed sources beside targets that are not
model(input_ids=source, decoder_input_ids=target, segment_ids=torch.ones_like(source))
ValueError: Packed sequences need segment_ids and decoder_segment_ids

an implementation that does not compute ReLU attention
model.set_attn_implementation("sdpa")
ValueError: is not supported by attention_activation='relu'; choose one of fused, eager.

an unknown field of the configuration
ReLUFormerConfig.from_preset("reluformer", d_modell=16)
ValueError: 'd_modell' is not a field of ReLUFormerConfig; did you mean d_model?

heads that do not divide the width
ReLUFormerConfig(d_model=10, encoder_attention_heads=4)
ValueError: d_model=10 must be a multiple of encoder_attention_heads=4.

attention without the scale of its rows
relu_attention(*3 * [torch.ones(1, 2, 3, 4)], causal=True)
ValueError: relu_attention was given no scale for its rows; give gamma (sqrt(2 n) is a good start for n tokens), …

attention with two scales for its rows
relu_attention(*3 * [torch.ones(1, 2, 3, 4)], gamma=8.0, row_scale=torch.ones(1, 1, 3))
ValueError: row_scale was given together with gamma=8.0, alpha=None, scaling='variance'; row_scale is all of r_i. …

a number as row scale
relu_attention(*3 * [torch.ones(1, 2, 3, 4)], row_scale=0.1)
ValueError: row_scale must be a tensor (batch, 1 or heads, queries) or None; got 0.1. One factor for all rows is torch.full(…

a query of three dimensions
relu_attention(*3 * [torch.ones(2, 3, 4)], scaling="none")
ValueError: query must be a tensor (batch, heads, length, head_dim); got the shape (2, 3, 4).

a value of another number of dimensions
relu_attention(*2 * [torch.ones(1, 2, 3, 4)], torch.ones(4), scaling="none")
ValueError: value must be a tensor (batch, heads, length, head_dim); got the shape (4,).

a list as padding mask
relu_attention(*3 * [torch.ones(1, 2, 3, 4)], scaling="none", key_padding_mask=[True])
ValueError: key_padding_mask must be a boolean tensor (batch, keys) or None; got a list.
""")

SPARSE_FFN = expressions("""
an activation without exact zeros
use_sparse_ffn(tiny_model(activation_function="gelu"))
ValueError: layers.0 (ReLUFormerDecoderLayer) computes GELUActivation, which gives no exact zeros to skip; use_sparse_ffn needs …

a softmax in the network
use_sparse_ffn(tiny_model(activation_function="softmax"))
ValueError: layers.0 (ReLUFormerDecoderLayer) computes an activation of another kind, which gives no exact zeros…

a model of pictures
use_sparse_ffn(vision)
ValueError: ReLUFormerForImageClassification takes pixel_values and decodes nothing; use_sparse_ffn serves decoding alone.

weights that are nowhere
use_sparse_ffn(tiny_model().to("meta"))
ValueError: layers.0 (ReLUFormerDecoderLayer): fc1 is on meta, use_sparse_ffn serves models on a CPU.

int8 for what is switched off
use_sparse_ffn(model, False, int8=True)
ValueError: use_sparse_ffn(model, False) restores the model's own weights; leave int8 out.

a module of torch
use_sparse_ffn(torch.nn.Linear(2, 2))
TypeError: use_sparse_ffn takes a Transformers model (a PreTrainedModel); got torch.nn.modules.linear.Linear. Of a PEFT model…
""")

GROUPS: dict[str, list[Case]] = {
    "Texts": TEXT,
    "Tables and data sets": TABLES,
    "Pictures": PICTURES,
    "Recipes": RECIPES,
    "Language models": LANGUAGE_MODELS,
    "Checkpoints": CHECKPOINTS,
    "Tokenizers": TOKENIZERS,
    "Arguments of commands": ARGUMENTS,
    "Calls of the model": MODEL,
    "Calls of the vision model": VISION_MODEL,
    "Calls of the language model": LANGUAGE_MODEL,
    "Networks that skip zeros": SPARSE_FFN,
}
