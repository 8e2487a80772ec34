"""The transformer, tokenizers, LoRA, and weights on disk. No sampling, batches, losses or methods here."""
