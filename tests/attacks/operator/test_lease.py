"""One leader, whatever happens to the Lease; seen by every replica's own metrics."""

import time

from api_server import until


def test_a_lease_that_is_deleted_makes_no_second_leader(server, start_operator, namespace):
    replicas = [start_operator(name) for name in ("one", "two", "three")]
    until(lambda: any(replica.leads() for replica in replicas))
    leaders, deadline = [], time.monotonic() + 12.0
    deleted_at = 0.0
    while time.monotonic() < deadline:
        if time.monotonic() - deleted_at > 2.3:  # another moment between two renewals each time
            server.kubectl("delete", "lease", "wisp-operator", "-n", namespace, check=False)
            deleted_at = time.monotonic()
        leading = [replica for replica in replicas if replica.leads()]
        if len(leading) > 1:  # asked one after the other: the first may have handed over meanwhile
            leading = [leading[-1], *(replica for replica in leading[:-1] if replica.leads())]
        leaders.append(len(leading))
    assert max(leaders) == 1
    assert leaders.count(1) > len(leaders) / 3  # and none for no longer than a Lease lasts
