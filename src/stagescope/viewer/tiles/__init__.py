"""Levels of detail on disk: every span of a run, and the same run in coarser and coarser blocks.

    records.py   the record types of the files
    merge.py     many short blocks to few
    index.py     where in a file a row and a time begin
    build.py     from spans to the files
    cache.py     where the files are kept, and under what name
    levels.py    what is in a part of a run, as fine as a screen can show it

A picture of 1,000 pixels has no use for a million spans: it is made from the level whose blocks are about a pixel
wide, so that its cost depends on the screen and not on the run.
"""
