"""Verdicts in words: one sentence for a line of the textbook, and what it means."""

from tracer.record import Step

SIGNS = {"verified": "✓", "refuted": "✕"}
MEANING = "The printed equation, executed, gives the model’s numbers. It does not say that the answer is right."


def words(step: Step) -> str:
    """Return the verdict on a line and the runs that it was found on: `verified on this run and 3 others`."""
    if step.verdict == "verified":
        others = f" and {step.checked} other{'s' * (step.checked > 1)}" if step.checked else ""
        return f"verified on this run{others}"
    if step.verdict == "refuted":
        return f"refuted on {'another' if step.refuted else 'this'} run"
    return step.verdict


def sentence(step: Step) -> str:
    """Return the verdict with its sign, where it has one: `✓ verified on this run`."""
    return f"{SIGNS.get(step.verdict, '')} {words(step)}".strip()
