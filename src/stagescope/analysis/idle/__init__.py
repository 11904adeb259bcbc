"""Idle time: the ledger of its causes, the idle intervals, and the phases of a step."""
