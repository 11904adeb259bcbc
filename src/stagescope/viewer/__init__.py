"""Everything the browser viewer needs: its data, tiles, page, local server and assets."""
