"""Fair sharing between tenants: start-time fair queueing and a cache partitioned by tenant."""
