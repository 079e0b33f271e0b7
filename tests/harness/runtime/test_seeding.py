"""Seeds depend on their parts, all of them, and on nothing else."""

from itertools import product

from gradwire.harness.runtime.seeding import derive_seed


def test_known_values_never_change():
    # sha256 of "i1:7", of "s5:modeli1:7" (printf … | sha256sum), first eight bytes, little-endian, 63 bits.
    assert derive_seed(7) == int.from_bytes(bytes.fromhex(SHA_OF_7)[:8], "little") % 2**63
    assert derive_seed("model", 7) == int.from_bytes(bytes.fromhex(SHA_OF_MODEL_7)[:8], "little") % 2**63


SHA_OF_7 = "09bff0e604d75e2af67d407e38522661fc68096cb4846908b5d2d82ae4008f1b"
SHA_OF_MODEL_7 = "a5cce29bf411fa75070527604a47d9878eea134c2c01c27e5abcbff99b59e6e2"


def test_different_parts_give_different_seeds():
    parts = [1, 12, -1, "1", "12", "", "s1:1", 0]
    tuples = [(a,) for a in parts] + list(product(parts, parts)) + list(product(parts, parts, parts)) + [()]
    seeds = [derive_seed(*parts) for parts in tuples]
    assert len(set(seeds)) == len(tuples)
    assert all(0 <= seed < 2**63 for seed in seeds)
