"""Schedulers of other machines behind the port `Backend`: Slurm, Ray and Kubernetes."""
