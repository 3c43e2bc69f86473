"""The analyses of `reluformer analyze`: what each needs, and the function that takes it. The command's help follows from them."""

from __future__ import annotations

from typing import NamedTuple

# What can be given, each with all before it: pictures belong to a classifier, text to any model of language.
NOTHING, MODEL, INPUT, TEXT, PAIRS, DOCUMENTS = NEEDS = ("nothing", "model", "input", "text", "pairs", "documents")


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
    "ppl-sparsity": Analysis("ppl_sparsity.ppl_sparsity", INPUT),
    "variance-ratio": Analysis("memories.variance_ratio", PAIRS),
    "anisotropy": Analysis("memories.anisotropy", MODEL),
    "likelihood": Analysis("likelihood.likelihood", TEXT),
    "context": Analysis("context.context", DOCUMENTS),
    "random-context": Analysis("context.random_context", DOCUMENTS),
    "variance-simulation": Analysis("simulation.variance_simulation", NOTHING),
}
