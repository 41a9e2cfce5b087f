"""Small configurations of transformers' models, and inputs that their forward accepts."""
