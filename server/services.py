"""What the routes of one worker share."""

from __future__ import annotations

from server.api.request_body import BodySlots, Writers
from server.auth import Access
from server.commands import Commands
from server.config import Config
from server.live_index import LiveIndex
from server.metrics import Metrics
from server.summaries import Summaries


class Services:
    """The parts of an application that its routes use."""

    def __init__(self, config: Config, live: LiveIndex, metrics: Metrics) -> None:
        self.config, self.live, self.metrics = config, live, metrics
        self.access = Access(config.index, private=config.private, guarded=config.guarded)
        self.bodies, self.commands = BodySlots(), Commands(config.index)
        self.summaries = Summaries(live)
        self.writers = Writers(live, self.access, self.bodies, config)
        self.stopping = False  # whether the worker is about to end

    def stop(self) -> None:
        """End answers that have no end of their own."""
        self.stopping = True


class Handlers:
    """Base class of the groups of routes and pages."""

    def __init__(self, services: Services) -> None:
        self._config, self._live, self._metrics = services.config, services.live, services.metrics
        self._access, self._bodies = services.access, services.bodies
        self._writers, self._commands = services.writers, services.commands
        self._summaries = services.summaries
