"""Stand-ins for providers of models: their wire formats on loopback, and an invoice."""
