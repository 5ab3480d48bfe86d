"""The slice of a member: reads its journals, orders rows and routes each to the queue it is for."""
