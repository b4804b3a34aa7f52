"""Several processes that train one replica: the leader, the followers, and the leader's announcements."""
