"""The analyses of `reluformer analyze`: what each needs, and the function that takes it. The command's help follows
from them."""

from __future__ import annotations

# Each has all before it: pictures belong to a classifier, text to any model of language.
MODEL, INPUT, TEXT, PAIRS, DOCUMENTS = NEEDS = (
    "a model",
    "a text, or pictures for a classifier",
    "a model of language and a text",
    "a translation model and source lines",
    "a translation model, source lines and a file that names the document of each (--documents)",
)


# Module and function of `reluformer.analysis`, which takes a `Subject` and returns an `AnalysisResult`; and what it
# needs.
ANALYSES = {
    "entropy": ("entropy.entropy", INPUT),
    "entropy-share": ("entropy.entropy_share", INPUT),
    "top-p": ("top_p.top_p", INPUT),
    "attention-maps": ("attention_maps.attention_maps", PAIRS),
    "ffn-sparsity": ("memories.ffn_sparsity", INPUT),
    "ppl-sparsity": ("ppl_sparsity.ppl_sparsity", TEXT),
    "variance-ratio": ("memories.variance_ratio", PAIRS),
    "anisotropy": ("memories.anisotropy", MODEL),
    "likelihood": ("likelihood.likelihood", TEXT),
    "context": ("likelihood.context", DOCUMENTS),
    "random-context": ("likelihood.random_context", DOCUMENTS),
}
