"""Pictures of one step: SVG and PNG."""
