"""What the lessons compute: each of its own runs, with the proofs that the page shows."""
