"""The number of cores of one run."""

import torch


def share() -> None:
    """Limit each run of this process to one core, so that as many runs go on in parallel as there are cores.

    With a team of threads for each matrix product, the threads of one run wait for each other at every op, and where
    anything else needs a core as well they wait for it too: beside other work, runs of our models took ten times as
    long with two threads as with one.
    """
    torch.set_num_threads(1)
