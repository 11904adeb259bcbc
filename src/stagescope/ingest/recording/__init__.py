"""Reader of stagescope's own recordings."""
