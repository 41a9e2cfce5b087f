"""Random mutants that survive, and why nothing on screen is wrong with them. None of them counts as caught."""

HARMLESS: dict[tuple[str, str, str], str] = {
    (
        "results.reconstruction",
        "constant: 0 → 1",
        ".clamp(0, 255)",
    ): "a pixel that is black would be 1 of 255, which is within rounding",
    (
        "score_path.is_windowed",
        "constant: 1 → 2",
        "argmax(dim=-1)",
    ): "the first that sees a token, for the first that it sees: where these groups are the cells, they are symmetric",
    (
        "preparation.MAX_CAPTION_TOKENS",
        "constant: 32 → 33",
        "MAX_CAPTION_TOKENS = 32",
    ): "a bound on captions that is longer than any of our models can write",
    (
        "masks._record_of",
        "constant: False → True",
        "attention=False",
    ): "attention would be recorded too, and let go of",
    (
        "arithmetic.Maximum",
        "comparison: left > right → left >= right",
        "",
    ): "the larger of two equal numbers is either of them",
    (
        "arithmetic.Minimum",
        "comparison: left < right → left <= right",
        "",
    ): "the smaller of two equal numbers is either of them",
    (
        "Interpolate.kernel",
        "comparison: away <= 1 → away < 1",
        "",
    ): "both pieces of the kernel are 0 at a distance of 1",
    (
        "same_size",
        "order: base_form(str(a), pairs) - base_form(str(b), pairs) → "
        "base_form(str(b), pairs) - base_form(str(a), pairs)",
        "",
    ): "a difference vanishes whichever is taken from which",
    (
        "error_bounds.where_bound",
        "order: torch.as_tensor(a) - b → b - torch.as_tensor(a)",
        "",
    ): "how far two numbers are apart is the same from either",
    (
        "axes.split_axis",
        "sign: last - first + 1 → last - first - 1",
        "",
    ): "all places of an axis are said one by one, which are the same places",
    (
        "BatchNorm.contributions",
        "sign: i + 1 → i - 1",
        "",
    ): "any shape with so many axes: only the cell's place is read",
    ("probes.SIZES", "constant: 43 → 44", "(17, 47, 61, 24, 43)"): "another size that is tried",
    ("Guard.doubt", "constant: 2 → 3", ""): "any mark tells a run of single tokens from one at the edge",
    (
        "shapes._run_beyond",
        "constant: 0 → 1",
        "held_size",
    ): "one run more is compared, at a batch of 1, if no batch was held",
    (
        "Solver._add_candidates",
        "constant: 1 → 2",
        "FACTORS[1:]",
    ): "2 · D is not listed beforehand, and is found as any other multiple is",
}
"""By the qualified name of what it stands in, by its own name and by what stands on the line, which tells those of one
name apart."""
