"""For tests of code that uses Millrace: fault points, bad disks, a service that charges."""

from millrace.testing.bad_disks import LyingDisk, RefusingDisk
from millrace.testing.fault_injection import armed
from millrace.testing.paid_api import PaidService

__all__ = ["LyingDisk", "PaidService", "RefusingDisk", "armed"]
