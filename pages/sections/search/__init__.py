"""Search over everything that the app can show of a run."""
