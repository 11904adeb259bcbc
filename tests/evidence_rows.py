"""Observations written as rows."""

import numpy as np

from stagescope.clocks.evidence import Evidence


def evidence_from_rows(rows, *, waited=True):
    """Return the observations of rows (source, target, sent_ns, delay_ns): delay is the apparent one."""
    source, target, sent_ns, delay_ns = (np.array(column) for column in zip(*rows, strict=True))
    return Evidence(
        source.astype(np.int64),
        target.astype(np.int64),
        sent_ns.astype(float),
        (sent_ns + delay_ns).astype(float),
        np.zeros(len(rows)),
        np.full(len(rows), waited),
        np.arange(len(rows)),
        np.zeros(len(rows), np.int64),
        np.zeros(len(rows)),
        np.zeros(len(rows), bool),
        *np.zeros((3, len(rows))),
    )


def there_and_back(moments_ns, *, ahead_ns, latency_ns=20.0):
    """Return rows of two clocks that exchange messages at each moment; clock 1 is ahead by `ahead_ns(moment)`."""
    rows = []
    for at_ns in moments_ns:
        rows.append((0, 1, at_ns, latency_ns + ahead_ns(at_ns)))
        rows.append((1, 0, at_ns + 1.0, latency_ns - ahead_ns(at_ns)))
    return rows
