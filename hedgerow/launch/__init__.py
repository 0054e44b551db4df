"""The processes of one job: their ranks, servers, connections and devices."""
