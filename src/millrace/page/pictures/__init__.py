"""Pictures of pages, as SVG without scripts and without styles of their own."""
