"""Graph of a run: calls, the values between them, and the passes that rewrite it."""
