"""Mutations of prose: explanations, titles, meanings."""

from __future__ import annotations

from tests.mutation.rules import code, text

RULES = (
    code("a wrong bound of GELU", {'bends("GELU", GELU, "-0.17")': 'bends("GELU", GELU, "-0.27")'}),
    code("a wrong bound of GELU by tanh", {'bends($name, GELUTanh, "-0.18")': 'bends($name, GELUTanh, "-0.08")'}),
    code("a wrong share of the weights", {"prod(shape)": "sum(shape)"}, within="claims.weights_of_the_block"),
    code("a wrong range of cosines", {'{"low": "-1", "high": "1"}': '{"low": "0", "high": "1"}'}, within="models.clip"),
    text("the reason of keys for queries", {"query": "key"}, within="OF_PARTS"),
    code("the reason of a residual for any sum", {'"O" in $made': "$made"}, within="explanations.why"),
    code("an RMS norm explained as a layer norm", {"name = 'rms'": "name = 'norm1'"}, within="explanations.why"),
    code("one head explained as several", {"$heads > 1": "True"}, within="claims.several_heads"),
    code(
        "mean 1 and variance 0",
        {'{"mean": "0", "variance": "1"}': '{"mean": "1", "variance": "0"}'},
        within="explanations.standardises",
    ),
    code("weights that sum to 2", {'{"total": "1"}': '{"total": "2"}'}, within="explanations"),
    code("a spread that grows as d_k", {'{"growth": "√d_k"}': '{"growth": "d_k"}'}, within="explanations"),
    code(
        "a mask that closes what is open",
        {'{"opened": "0", "closed": closed}': '{"opened": closed, "closed": "0"}'},
        within="explanations",
    ),
)
