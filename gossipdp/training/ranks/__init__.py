"""Several processes that train one replica: the leader, the followers, and their announcements."""
