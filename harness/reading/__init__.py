"""The one way of reading files that others wrote: bounded, checked, never run; a refusal is one line."""
