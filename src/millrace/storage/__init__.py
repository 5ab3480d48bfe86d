"""Where bytes are kept: a folder on a disk or a part of a bucket, behind one contract."""
