"""Damaged and generated files and addresses, of any kind: shown or refused in a sentence, at a bounded cost.

`make fuzz` tries many more; what it finds becomes a test beside the tests of what it was found in.
"""

from tests.fuzz import command

COUNT = 90


def test_no_input_raises_executes_or_takes_too_much():
    tally = command.Tally()
    for result in command.results(0, COUNT, warm=3):  # the pages of these addresses are drawn at once
        tally.add(result)
    assert not tally.wrong, "\n".join(map(command.format_failure, tally.wrong))
    assert tally.count == COUNT
    for kind in ("saved run", "photo", "checkpoint", "sound"):  # neither all junk nor all sound
        assert tally.ended[kind]["refused"] > 0 and tally.ended[kind]["shown"] > 0, kind
    assert tally.ended["address"]["shown"] > 0
