"""Writers of files in the formats of other projects' tools, for users of those tools."""
