"""Pretrained weights that lie in Python packages: which, how they are fetched, what is made of them."""
