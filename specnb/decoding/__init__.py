"""Decoding real models: the loop, its cache, drafters and what a run returns."""
