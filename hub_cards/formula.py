"""The attention of a configuration as formulas and sentences for a model card."""

from __future__ import annotations

from reluformer import ReLUFormerConfig
from reluformer.modeling_reluformer.attention_reluformer import ACTIVATIONS


def attention_formula(config: ReLUFormerConfig) -> str:
    """The weight of key j for query i, in LaTeX, with the configuration's figures put in."""
    score = r"x_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}"
    weight = ACTIVATIONS[config.attention_activation].latex
    if config.attention_scaling == "variance":
        weight = rf"\frac{{{weight}}}{{\gamma \sqrt{{n_i / 2}}}}"
    elif config.attention_scaling == "length":
        weight = rf"n_i^{{-{config.attention_alpha:g}}} \; {weight}"
    return rf"{score}, \qquad s_{{ij}} = {weight}"


def attention_notes(config: ReLUFormerConfig) -> list[str]:
    """What the symbols stand for, and every other choice about attention, one sentence each."""
    notes = ["`d` is the width of a head."]
    if config.attention_scaling in ("variance", "length"):
        notes.append("`n_i` is the number of keys that query `i` can see; padding never counts.")
    if config.attention_scaling == "variance" and config.attention_gamma_learnable:
        notes.append(f"`γ` is learned for each head and started at {config.attention_gamma:g}.")
    elif config.attention_scaling == "variance":
        notes.append(f"`γ` is {config.attention_gamma:g}.")
    if config.attention_qk_norm:
        notes.append("Queries and keys of each head pass through LayerNorm first.")
    if config.attention_output_norm == "layer_norm":
        notes.append("The merged heads pass through LayerNorm.")
    elif config.attention_output_norm == "gated_rms":
        notes.append("The merged heads pass through ReLA's gated RMSNorm.")
    if config.attention_gate:
        notes.append("A projected gate multiplies the merged heads.")
    return notes


def regularization_formula(config: ReLUFormerConfig) -> str | None:
    """The regulariser in LaTeX; None where its weight is 0."""
    if not config.regularization_weight:
        return None
    margin = rf"{config.entropy_margin:g} \log n_i"
    return (
        rf"\mathcal{{L}} = \mathrm{{CE}} + {config.regularization_weight:g} \, \mathcal{{L}}_{{reg}}, \qquad "
        r"\mathcal{L}_{reg} = \mathrm{mean}_i \left( |\log S_i| + "
        rf"\max(H_i - {margin}, 0) \right), \qquad S_i = \sum_j s_{{ij}}"
    )
