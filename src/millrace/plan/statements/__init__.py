"""SQL statements as relations: queries, their clauses and their subqueries."""
