"""What tests of pipelines on Millrace need, shipped to users: fault points and bad disks."""
