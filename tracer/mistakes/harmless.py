"""Mistakes that are drawn from seed 0 and survive, and why nothing that is shown is wrong with them."""

HARMLESS: dict[tuple[str, str, str], str] = {
    (
        "account.py",
        "constant: 1 → 2",
        "return hash((len(self), self[-1]))",
    ): "how runs are hashed; whether two are one is asked of all of their ops",
    (
        "anomaly.py",
        "constant: 0 → 1",
        ".clamp(0, 255)",
    ): "a pixel that is black would be 1 of 255, which is within rounding",
    (
        "inputs/captions.py",
        "constant: 32 → 33",
        "MOST = 32",
    ): "a bound on captions that is longer than any of our models can write",
    ("masks/closing.py", "constant: 1 → 2", ".softmax(-1)"): "not run by verify: tests/test_closing.py holds it",
    (
        "masks/influence.py",
        "constant: False → True",
        "attention=False",
    ): "attention would be recorded too, and let go of",
    (
        "models/__init__.py",
        "constant: 0 → 1",
        'split("\\n")[0]',
    ): "not run by verify: the one line that says what a model is",
    (
        "models/nanogpt.py",
        "constant: True → False",
        "options=",
    ): "another choice on offer; the shipped weights say what they are run with",
    (
        "probe/__init__.py",
        "sign: (UNKNOWN,) * len(shape) → (UNKNOWN,) / len(shape)",
        "",
    ): "only run where a size is unknown, which verify refuses",
    (
        "probe/__init__.py",
        "arguments: map(_unknown, self.opened[i].parts) → map(self.opened[i].parts, _unknown)",
        "",
    ): "only run where a size is unknown, which verify refuses",
    (
        "probe/align.py",
        "comparison: name in VIEWS → name not in VIEWS",
        'return "view" if name in VIEWS',
    ): "reshapes that are spelled differently would be solved at this batch alone, and say so",
    ("probe/axes.py", "constant: 11 → 12", "11,"): "another size that is tried",
    ("probe/axes.py", "constant: 17 → 18", "17,"): "another size that is tried",
    ("probe/axes.py", "constant: 2 → 3", "(2 * position"): "another size that is tried",
    ("probe/axes.py", "sign: -tensor.dim() → tensor.dim()", ""): "whether an axis counted from the end is refused",
    (
        "probe/solve.py",
        "constant: 1 → 2",
        "FACTORS[1:]",
    ): "fewer candidates: a size of 2 · D would be unknown, and verify refuses those",
    (
        "probe/solve.py",
        "comparison: k >= j → k > j",
        "",
    ): "fewer candidates: what is missing is unknown, and verify refuses it",
}
"""By file, by name and by what stands on the line, which tells those of one name apart."""
