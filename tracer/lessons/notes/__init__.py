"""Five notes as a running system: each statement in order, the run that reproduces it, and a verdict."""
