"""The lease: how long a worker may hold a run, how often it renews that right, and how often it may lose it. No I/O."""

LEASE_MS = 3_000
"""A lease that is not renewed for this long lapses, and the run is ready again for any worker."""
RENEW_EVERY = 1.0
"""Seconds between two renewals by a worker."""
LOSSES_ALLOWED = 5
"""A run may lose this many leases. With the next loss it fails, reason `lost-worker`."""
LEADS_FOR_MS = 2_000
"""A housekeeper leads for this long after its last round."""
