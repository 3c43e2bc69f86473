"""The analyses of `reluformer analyze`: what each needs, and the function that takes it. The command's help follows from them."""

from __future__ import annotations

from typing import NamedTuple

# Each has all before it: pictures belong to a classifier, text to any model of language.
MODEL, INPUT, TEXT, PAIRS, DOCUMENTS = NEEDS = (
    "a model",
    "a text, or pictures for a classifier",
    "a model of language and a text",
    "a translation model and source lines",
    "a translation model, source lines and a file that names the document of each (--documents)",
)


class Analysis(NamedTuple):
    """One analysis.

    function: module and function of `reluformer.analysis`; takes a `Subject` and returns a `Measured`.
    needs: one of `NEEDS`.
    """

    function: str
    needs: str


ANALYSES = {
    "entropy": Analysis("entropy.entropy", INPUT),
    "entropy-share": Analysis("entropy.entropy_share", INPUT),
    "top-p": Analysis("top_p.top_p", INPUT),
    "attention-maps": Analysis("attention_maps.attention_maps", PAIRS),
    "ffn-sparsity": Analysis("memories.ffn_sparsity", INPUT),
    "ppl-sparsity": Analysis("ppl_sparsity.ppl_sparsity", TEXT),
    "variance-ratio": Analysis("memories.variance_ratio", PAIRS),
    "anisotropy": Analysis("memories.anisotropy", MODEL),
    "likelihood": Analysis("likelihood.likelihood", TEXT),
    "context": Analysis("context.context", DOCUMENTS),
    "random-context": Analysis("context.random_context", DOCUMENTS),
}
