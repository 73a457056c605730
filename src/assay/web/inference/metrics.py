"""Metrics of a server of one model, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info


class ServerMetrics:
    """Requests for inference, the batches that they ran in, and the model that is served now."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "assay_serve_requests", "Answered requests.", ["status"], registry=registry
        )
        self.seconds = Histogram(
            "assay_serve_request_seconds", "Seconds to an answer.", registry=registry
        )
        self.samples = Histogram(
            "assay_serve_batch_samples",
            "Samples that ran together.",
            registry=registry,
            buckets=[1 << power for power in range(11)],
        )
        self.in_flight = Gauge("assay_serve_in_flight", "Unanswered requests.", registry=registry)
        self.model = Info("assay_serve_model", "Model that is served now.", registry=registry)
