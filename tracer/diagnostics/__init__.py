"""What is wrong with a model's code: why a forward fails, and findings of a run that goes through."""
