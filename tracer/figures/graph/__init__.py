"""Pictures of how data flows between the steps of a run."""
