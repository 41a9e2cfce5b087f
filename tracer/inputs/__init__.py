"""What a person gives a model, made into what the model takes: `images` for photos, `text` for words."""
