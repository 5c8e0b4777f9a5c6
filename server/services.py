"""What the routes of one worker share."""

from __future__ import annotations

from typing import NamedTuple

from server.api.request_body import BodySlots, Writers
from server.auth import Access
from server.commands import Commands
from server.config import Config
from server.live_index import LiveIndex
from server.metrics import Metrics


class Services(NamedTuple):
    """The parts of an application that its routes use."""

    config: Config
    live: LiveIndex
    metrics: Metrics
    access: Access
    bodies: BodySlots
    writers: Writers
    commands: Commands

    @classmethod
    def of(cls, config: Config, live: LiveIndex, metrics: Metrics) -> Services:
        """Make the parts that follow from the settings."""
        access = Access(config.index, private=config.private, guarded=config.guarded)
        bodies = BodySlots()
        writers = Writers(live, access, bodies, config)
        return cls(config, live, metrics, access, bodies, writers, Commands(config.index))


class Handlers:
    """Base class of the groups of routes and pages."""

    def __init__(self, services: Services) -> None:
        self._config, self._live, self._metrics = services[:3]
        self._access, self._bodies, self._writers, self._commands = services[3:]
