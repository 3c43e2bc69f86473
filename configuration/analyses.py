"""The figures of `reluformer analyze`. The files of a run folder and the help of the command follow from this list."""

from __future__ import annotations

# Name → module of `reluformer.analysis`, whose `FIGURE` it is; see `reluformer.analysis.figure`.
ANALYSES = {
    "entropy": "entropy",
    "entropy-share": "entropy_share",
    "likelihood": "likelihood",
    "context": "context",
    "random-context": "random_context",
    "ffn-sparsity": "ffn_sparsity",
    "ppl-sparsity": "ppl_sparsity",
    "variance-ratio": "variance_ratio",
    "top-p": "top_p",
    "attention-maps": "model_maps",
    "anisotropy": "anisotropy",
    "variance-simulation": "variance_simulation",
}
