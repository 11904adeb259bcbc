"""Record this process if the environment has STAGESCOPE_RECORD, a directory: one line at the top of a script.

    import stagescope.record.auto

Without the variable nothing happens, so the line may stay. A process that `stagescope run` started is recorded already.
"""

from stagescope.record import session, startup

if session.directory_of_environment():
    startup.arm()
