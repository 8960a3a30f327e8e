"""Fuzzing of every reader: bytes from a corpus of seeds, mutated; README.md says how to run it.

readers      the table: each reader with its seeds, its allowed errors and its bounds
wrappings    formats taken apart and put together again with correct checksums and lengths
mutations    a hypothesis strategy of mutated seeds
runner       a reader in a bounded process, and what it found
make_seeds   writes the seeds
"""
