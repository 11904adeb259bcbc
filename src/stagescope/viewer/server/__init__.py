"""The local server: the browser viewer for a run of any size, for the user of this machine alone.

access.py       who may ask
gate.py         the check of every request, and the headers of every answer
connections.py  an end to patience with whoever asks or reads too slowly
questions.py    what may be asked: numbers within bounds
app.py          the answers
threads.py      where they are worked out
live.py         the run that is shown, read again when its files have changed
serve.py        a socket, the event loop, and the end
"""
