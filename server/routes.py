"""The routes of the API, each declared by a decorator of the method that answers it.

Flask's routes, the rows of the metrics and the OpenAPI document are made from `ROUTES`, which is
complete when `server.app` has been imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

Schema = dict[str, Any]
Content = tuple[str | Schema, ...]
"""What a body may be: schemas, names of schemas in `server.openapi`, and media types of text."""

_View = TypeVar("_View", bound=Callable[..., Any])


@dataclass(frozen=True)
class Route:
    """One method of one path. As a decorator it adds itself to `ROUTES`."""

    method: str
    path: str
    answer: Content | dict[int, Content] = ("object",)  # of a 200, or of each status
    summary: str = ""  # default: the first line of the view's docstring, without its full stop
    name: str = ""  # operation id, endpoint of Flask, label in the metrics; default: the view's
    errors: tuple[int, ...] = ()  # statuses, beside those that follow from the rest
    body: Content = ()
    parameters: Mapping[str, Schema] = field(default_factory=dict)  # of the query string
    required: str = ""  # the parameter that cannot be left out
    open: bool = False  # without a token, and while the index cannot be read
    timed: bool = True  # by Flask; other routes are counted where they are answered
    view: Callable[..., Any] | None = None  # a method that answers it

    def __call__(self, view: _View) -> _View:
        about, name = (view.__doc__ or "").partition("\n")[0].removesuffix("."), view.__name__
        named = replace(self, name=self.name or name, summary=self.summary or about, view=view)
        ROUTES.append(named)
        return view

    def answers(self) -> dict[int, Content]:
        """Return the content of each status but those of errors."""
        return self.answer if isinstance(self.answer, dict) else {200: self.answer}


ROUTES: list[Route] = []


def routes_of(views: object) -> Iterator[tuple[Route, Callable[..., Any]]]:
    """Yield the routes that methods of an object answer, with these methods."""
    for route in ROUTES:
        if route.view is not None and route.view in vars(type(views)).values():
            yield route, route.view.__get__(views)
