"""`python -m tracer trace`, with the settings of models that have some, such as a seed."""

import json

import pytest

from tracer import cli

SURFACE = ["trace", "mae", "--format", "json", "--set", "L=1", "L_dec=1", "D=8", "h=2", "d_ff=8"]


def visible(capsys, *given) -> list[int]:
    assert cli.main([*SURFACE, *given]) == 0
    return json.loads(capsys.readouterr().out)["result"]["visible"]


def test_a_seed_may_be_zero_and_decides_what_is_hidden(capsys):
    assert visible(capsys, "seed=0") == visible(capsys) != visible(capsys, "seed=1")


@pytest.mark.parametrize("wrong", ["seed=-1", "seed=x", "seed=0.5"])
def test_other_seeds_are_refused_in_one_line(capsys, wrong):
    assert cli.main(["trace", "mae", "--set", wrong]) == 2
    assert capsys.readouterr().err == f"tracer: '{wrong}' can't be set, expected a whole number from 0\n"


def test_a_size_of_zero_is_still_refused(capsys):
    assert cli.main(["trace", "mae", "--set", "N_v=0"]) == 2
    assert "'N_v=0' is not a size" in capsys.readouterr().err
