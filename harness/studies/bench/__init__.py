"""How fast the codecs' operations are here, one by one, beside a copy and beside their definition."""
