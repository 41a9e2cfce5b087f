"""Pictures of the data flow between the steps of a run."""
