"""The five notes as a running system: each statement in order, what reproduces it in a run, and whether it holds."""
