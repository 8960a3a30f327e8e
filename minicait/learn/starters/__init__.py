"""My engine: reverse-mode autograd and a small CaiT, written exercise by exercise. README.md says how to go on."""
