"""Arithmetic that every machine and implementation repeats bit for bit: float32 in a fixed order (`floats`),
random numbers that are functions of what they are for (`random`), integers as a bit stream (`bitpack`),
and the Walsh-Hadamard transform (`hadamard`)."""
