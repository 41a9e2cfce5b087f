"""What is wrong with a model's code: findings of a run that goes through."""
