"""The transformer, tokenizers, and weights in and out. Knows nothing of sampling, batches, losses or methods."""
