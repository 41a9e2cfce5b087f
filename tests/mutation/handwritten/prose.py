"""Mutations of prose: explanations, titles, meanings."""

from __future__ import annotations

from tests.mutation.rules import code, text

SPREAD = "The standard deviation of a sum of d_k independent products grows as"

RULES = (
    code("a wrong bound of GELU", {'bends("GELU", GELU, "-0.17")': 'bends("GELU", GELU, "-0.27")'}),
    code("a wrong bound of GELU by tanh", {'bends($name, GELUTanh, "-0.18")': 'bends($name, GELUTanh, "-0.08")'}),
    text(
        "a wrong share of the weights",
        {
            "{mlp_matrices} of {mlp} weights in all, its attention {attention_matrices} of {attention}": (
                "{mlp_matrices} of {attention} weights in all, its attention {attention_matrices} of {mlp}"
            )
        },
    ),
    text("a wrong range of cosines", {"Cosines lie between -1 and 1": "Cosines lie between 0 and 1"}),
    text("the reason of keys for queries", {"query": "key"}, within="OF_PARTS"),
    code("the reason of a residual for any sum", {'"O" in $made': "$made"}, within="explanations.why"),
    code("an RMS norm explained as a layer norm", {"name = 'rms'": "name = 'norm1'"}, within="explanations.why"),
    code("one head explained as several", {"$heads > 1": "True"}, within="claims.several_heads"),
    text(
        "mean 1 and variance 0",
        {"shifted to mean 0 and scaled to variance 1. A": "shifted to mean 1 and scaled to variance 0. A"},
    ),
    text("weights that sum to 2", {"becomes weights that sum to 1": "becomes weights that sum to 2"}),
    text(
        "an MLP that mixes tokens",
        {"the MLP works on each token alone": "in the MLP tokens go on talking to each other"},
    ),
    text(
        "a spread that grows as d_k",
        {f"{SPREAD} √d_k": f"{SPREAD} d_k"},
    ),
    text("a ReLU that keeps the negative", {"ReLU keeps what is positive": "ReLU keeps what is negative"}),
    text(
        "a mask that closes what is open",
        {
            "The mask adds 0 where a token may attend, -∞ where it may not. The": (
                "The mask adds -∞ where a token may attend, 0 where it may not. The"
            )
        },
    ),
)
