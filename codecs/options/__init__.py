"""Options of codecs, apart from their code: fields, defaults, allowed values, and the place of each codec.

A command line is checked, and a help page written, without PyTorch: these modules import `codecs.fields` and
nothing else. A codec's class derives from its options. Codecs that work alike share a file.
"""
