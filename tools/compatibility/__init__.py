"""The table of what each release of a framework offers to the hooks: how it is read, kept and compared.

``python -m tools.compatibility check`` compares the table in tests/data/compatibility with the releases on the package
index; ``update`` rewrites it. Nothing is installed or imported: the sources are downloaded with pip and parsed.
"""
