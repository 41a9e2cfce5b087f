"""The run as a film: its beats, derived from the run alone."""
