"""Files and scripts that deploy peers: systemd, Docker, Kubernetes, SkyPilot, Slurm, Ray."""
