"""Functions of arrays, maps, structs and their lambdas."""
