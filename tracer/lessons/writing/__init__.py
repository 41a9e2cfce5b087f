"""Computations of the lesson on writing: the choice of a token, the savings of a cache, and the effects of padding."""
