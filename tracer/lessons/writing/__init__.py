"""What the lesson on writing computes: the choice of a token, what a cache saves, and what padding does."""
