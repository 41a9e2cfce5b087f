"""How many cores one run may take."""

import torch


def share() -> None:
    """Gives each run of this process one core, so that as many go on beside each other as there are cores.

    With a team of threads for each product of matrices, those of one run wait for each other at every op, and where
    anything else wants a core as well they wait for it too: beside other work, runs of our models took ten times as
    long with two threads as with one.
    """
    torch.set_num_threads(1)
