"""The local server: the browser viewer for a run of any size, for the user of this machine alone.

access.py       authentication: the link, the cookie, origins
gate.py         middleware: access check, security headers
connections.py  time limits for slow clients, a limit on connections
parameters.py   validation of request parameters
app.py          routes and responses
threads.py      worker threads
live.py         the current version of the run, reloaded when its files change
serve.py        socket, event loop, shutdown
"""
