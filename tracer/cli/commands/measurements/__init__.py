"""Commands that measure many runs."""
