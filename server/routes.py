"""The routes of the API, each declared by a decorator of the method that answers it.

Flask's routes, the rows of the metrics and the OpenAPI document are made from `ROUTES`, which is
complete when `server.app` has been imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

Schema = dict[str, Any]
Content = tuple[str | Schema, ...]
"""What a body may be: schemas, names of schemas in `schemas`, and media types of text."""

TEXT = "text/plain"


class Route(NamedTuple):
    """One method of one path."""

    view: Callable[..., Any]
    method: str
    path: str
    name: str  # operation id, endpoint of Flask, label in the metrics
    summary: str
    answers: dict[int, Content]
    errors: tuple[int, ...]  # beside those that follow from the rest
    body: Content
    parameters: Mapping[str, Schema]  # of the query string
    required: str  # the parameter that cannot be left out
    open: bool  # to those without a token, while the index cannot be read
    timed: bool  # by Flask; others are counted where they are answered


ROUTES: list[Route] = []
_View = TypeVar("_View", bound=Callable[..., Any])


def route(
    method: str,
    path: str,
    summary: str,
    answer: str | Content | dict[int, Content] = "object",
    *,
    name: str = "",
    errors: tuple[int, ...] = (),
    body: str | Content = (),
    parameters: Mapping[str, Schema] | None = None,
    required: str = "",
    open: bool = False,
    timed: bool = True,
) -> Callable[[_View], _View]:
    """Declare that a method of a class answers a route; `name` is its own unless given.

    `answer` is the schema of a 200, or what each status has.
    """

    def declare(view: _View) -> _View:
        ROUTES.append(
            Route(
                view,
                method,
                path,
                name or view.__name__,
                summary,
                answer if isinstance(answer, dict) else {200: _content(answer)},
                errors,
                _content(body),
                parameters or {},
                required,
                open,
                timed,
            )
        )
        return view

    return declare


def _content(given: str | Content) -> Content:
    return (given,) if isinstance(given, str) else given


def routes_of(views: type) -> Iterator[Route]:
    """Yield the routes that methods of a class answer."""
    return (route for route in ROUTES if vars(views).get(route.view.__name__) is route.view)
