"""Fair sharing between tenants: queues, thread pools, capacity and caps."""
