"""Mutations of the measurements of a lesson."""

from __future__ import annotations

from tests.mutation.rules import code

RULES = (
    code("a guess among the positions for one among the tokens", {"log(V)": "log(T)"}, within="next_token_loss"),
    code(
        "the first token among the targets",
        {"$t.narrow(1, 1, $t.shape[1] - 1)": "$t.narrow(1, 0, $t.shape[1] - 1)"},
        within="next_token_loss",
    ),
    code(
        "distances with the other sign",
        {"range(-($x // 2), $x // 2 + 1)": "range($x // 2, -($x // 2) - 1, -1)"},
        within="experiments",
    ),
    code(
        "outputs of a shuffle that are not put back",
        {"$x[:, $order.argsort()]": "$x[:, $order]"},
        within="experiments.shuffle",
    ),
    code(
        "slopes of ALiBi that fall half as fast",
        {"8 * torch.arange(*$x)": "4 * torch.arange(*$x)"},
        within="encodings.AlibiPositions",
    ),
)
