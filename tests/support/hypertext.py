"""Reads a page as a browser would, and refuses what none of our pages may have."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "input", "line", "wbr"}
_TAGS = _VOID | set(
    re.findall(
        r"\w+",
        "html head title script body a header p nav ul li main footer h1 h2 h3 section div dl dt dd"
        " bdi code pre table caption thead tbody tr th td svg form label input select option button"
        " span strong time details summary ol rect circle figure figcaption datalist noscript"
        " progress",
    )
)
_ATTRIBUTES = set(
    re.findall(
        r"[\w-]+",
        "lang charset name content rel href type src defer class id tabindex aria-label"
        " aria-current aria-labelledby aria-describedby aria-invalid aria-hidden role hidden scope"
        " datetime width height x y x1 x2 y1 y2 cx cy r"
        " for value autocomplete list autocapitalize spellcheck"
        " inputmode http-equiv method action enctype required checked selected open data-live"
        " data-live-control data-live-events data-live-from data-live-time data-live-announcement"
        " data-summary data-sort data-sorted data-value"
        " data-upload data-upload-state data-upload-bar max",
    )
)


class Page(HTMLParser):
    """A page that was read; raises `AssertionError` for what it may not have."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title = self.text = ""
        self.links: list[str] = []
        self.ids: list[str] = []
        self._for: list[str] = []
        self._open: list[str] = []
        assert source.startswith("<!doctype html>")
        self.feed(source)
        self.close()
        assert self._open == [], self._open
        assert len(set(self.ids)) == len(self.ids), self.ids
        assert set(self._for) <= set(self.ids)
        assert self.title and "<h1>" in source

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS, tag
        given = dict(attrs)
        assert len(given) == len(attrs), attrs
        for name, value in given.items():
            assert name in _ATTRIBUTES, (tag, name)
            if name in ("href", "src", "action"):
                assert value and value[0] in "/#" and value[:2] != "//", value
                if name != "action":
                    self.links.append(value)
            if name == "id":
                self.ids.append(str(value))
            if name in ("for", "aria-labelledby", "aria-describedby"):
                self._for.append(str(value))
        if tag == "script":
            assert given.keys() == {"src", "defer"}
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("rect", "line", "circle")
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, self._open

    def handle_data(self, data: str) -> None:
        if self._open[-2:] == ["head", "title"]:
            self.title += data
        assert not self._open or self._open[-1] != "script"
        self.text += data
        assert data.replace("\n", "").isprintable(), data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")
