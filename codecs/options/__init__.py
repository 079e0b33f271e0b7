"""What every codec can be told, apart from the code that does it: fields, defaults, what each allows.

A command line is checked, and a help page written, without PyTorch: these modules import `codecs.fields` and
nothing else. A codec's class derives from its options. Codecs that work alike share a file.
"""
