"""One file per model family: how our fields map to those of transformers."""
