"""Files as other projects' tools write them, for whoever already reads those."""
