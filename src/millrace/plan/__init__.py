"""What a dataset means and how it is run: expressions, nodes, exchanges, stages. Pure."""
