"""The speed of the codecs' operations, compared with a copy and with their definition in PyTorch."""
