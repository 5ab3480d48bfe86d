"""What `millrace doctor` looks at: this host, the executors, and a workspace's storage."""
