"""Pods as local processes: started, probed, restarted, drained."""
