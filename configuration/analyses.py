"""The figures of `reluformer analyze`. The files of a run folder and the help of the command follow from this list."""

from __future__ import annotations

# Name → module and class of `reluformer.analysis`; see `reluformer.analysis.figure`.
ANALYSES = {
    "entropy": "entropy.Entropy",
    "entropy-share": "entropy.EntropyShare",
    "likelihood": "likelihood.Likelihood",
    "context": "likelihood.Context",
    "random-context": "likelihood.RandomContext",
    "ffn-sparsity": "ffn_sparsity.FFNSparsity",
    "ppl-sparsity": "ppl_sparsity.PPLSparsity",
    "variance-ratio": "variance.VarianceRatio",
    "top-p": "top_p.TopP",
    "attention-maps": "attention_maps.AttentionMaps",
    "anisotropy": "anisotropy.Anisotropy",
    "variance-simulation": "variance.VarianceSimulation",
}
