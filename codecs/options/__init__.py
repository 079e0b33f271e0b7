"""Options of codecs, apart from their code: fields, defaults, allowed values, and the place of each codec.

These modules import only `codecs.fields`, so that a command line is checked and a help page printed without
PyTorch. A codec's class derives from its options. Codecs that work alike share a file.
"""
