"""Seeded weights are the same whatever else happens in the process, and nothing of it moves the process's generator."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import tracer
from tracer.spec.spec import build_seeded
from tracer.utils.torch_state import seeded_draws

SMALL = {"D": 12, "d_k": 4, "d_ff": 16, "H": 32, "W": 32, "P": 16}


def weights(_=None) -> dict[str, torch.Tensor]:
    return tracer.load("vit-note", **SMALL).net.state_dict()


def test_threads_that_load_at_once_get_the_same_weights():
    alone = weights()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(12):
            for found in pool.map(weights, range(8)):
                assert all(torch.equal(found[name], alone[name]) for name in alone)


def test_draws_of_another_thread_change_no_weights():
    over, alone = False, weights()

    def draw():
        while not over:
            torch.randn(100)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(draw)
        found = [weights() for _ in range(20)]
        over = True
        other.result()
    assert all(torch.equal(each[name], alone[name]) for each in found for name in alone)


def every_draw() -> list[torch.Tensor]:
    drawn = [torch.randn(3), torch.rand(3), torch.randint(9, (3,)), torch.randint(2, 9, (3,)), torch.randperm(9)]
    drawn += [torch.rand_like(drawn[0]), torch.randn_like(drawn[0]), torch.multinomial(torch.ones(5), 2)]
    drawn += [nn.functional.dropout(torch.ones(99)), torch.bernoulli(torch.full((9,), 0.5)), torch.empty(3).normal_()]
    drawn += [nn.init.trunc_normal_(torch.empty(9)), nn.init.xavier_uniform_(torch.empty(3, 3)), nn.Linear(3, 4).bias]
    drawn += [torch.randn(3, generator=None)]
    return [*drawn, torch.normal(0.0, torch.ones(3)), torch.empty(3).exponential_(), torch.randn(2, dtype=torch.half)]


def test_the_numbers_are_those_of_the_process_seeded_and_its_own_state_stays():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = every_draw()
    before = torch.get_rng_state()
    with seeded_draws(7):
        found = every_draw()
    assert torch.equal(before, torch.get_rng_state())
    assert len(found) == len(expected) and all(map(torch.equal, found, expected))


def test_a_net_of_another_device_is_built_without_draws():
    with torch.device("meta"):
        assert build_seeded(lambda: nn.Identity(), {}) is not None
        with seeded_draws(0):
            assert nn.Linear(3, 4).weight.device.type == "meta"
