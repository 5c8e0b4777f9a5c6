"""Text and HTML of web pages by Resiliparse, an extra, which is imported on first use.

It decodes, parses and extracts as browsers do. An input that crashes it ends the worker process,
and costs only that record (`runtime.workers.map_in_order`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple
from urllib.parse import urljoin

from dedupindex.errors import BadInput, to_install

HTML = frozenset(("text/html", "application/xhtml+xml"))
_WITHIN = dict.fromkeys(map(ord, "\t\n\r"))  # browsers remove these from addresses
_AROUND = "".join(map(chr, range(0x21)))
_TEXTUAL = re.compile(r"text/.*|.*[/+](?:json|xml|javascript|ecmascript|x-javascript|yaml|csv)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([A-Za-z0-9_.:-]+)", re.IGNORECASE)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SNIFFED = 1 << 16  # bytes that are searched for signs of a type
_MIN_LETTERS = 40  # of a text whose language is detected
_TAG = re.compile(  # the beginning of a page, MIME Sniffing Standard, section 7.1
    rb"(?:\xef\xbb\xbf)?[\t\n\f\r ]*<(?:!--|(?:!doctype html|html|head|script|iframe|h1|div|font"
    rb"|table|a|style|title|b|body|br|p)(?=[ >]))",
    re.IGNORECASE,
)
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")  # section 3
_SIGNS = (  # MIME Sniffing Standard, sections 6 and 7.1
    (0, b"%PDF-", "application/pdf"), (0, b"%!PS-Adobe-", "application/postscript"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"), (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"), (0, b"\xff\xd8\xff", "image/jpeg"),
    (8, b"WEBPVP", "image/webp"), (0, b"BM", "image/bmp"), (0, b"\0\0\1\0", "image/x-icon"),
    (0, b"\0\0\2\0", "image/x-icon"), (8, b"WAVE", "audio/wave"), (8, b"AVI ", "video/avi"),
    (8, b"AIFF", "audio/aiff"), (0, b"ID3", "audio/mpeg"), (0, b"OggS\0", "application/ogg"),
    (0, b"MThd\0\0\0\6", "audio/midi"), (4, b"ftyp", "video/mp4"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"), (0, b"wOFF", "font/woff"), (0, b"wOF2", "font/woff2"),
    (0, b"OTTO", "font/otf"), (0, b"\0\1\0\0", "font/ttf"),
    (0, b"\x1f\x8b\x08", "application/gzip"), (0, b"PK\3\4", "application/zip"),
    (0, b"Rar!\x1a\x07", "application/x-rar-compressed"),
)  # fmt: skip


def is_installed() -> bool:
    return find_spec("resiliparse") is not None


def sniff_mime(content: bytes) -> str:
    """Detect the media type of bytes."""
    from resiliparse.parse.encoding import detect_mime

    start = content[:_SNIFFED]
    for at, sign, mime in _SIGNS:
        if start.startswith(sign, at):
            return mime
    if _TAG.match(start):
        return "text/html"
    if any(start.startswith(bom) for bom, _ in _BOMS):
        return "text/plain"
    found = str(detect_mime(start))
    is_text = found == "application/octet-stream" and not _BINARY.search(start)
    return "text/plain" if is_text else found


def is_html(stated: str, detected: str) -> bool:
    """Return whether a payload is a page, by its detected type or its stated one."""
    return detected in HTML or (stated in HTML and _is_text(detected))


def _is_text(mime: str) -> bool:
    return _TEXTUAL.fullmatch(mime) is not None


def text_of(content: bytes, content_type: str, detected: str) -> str | None:
    """Decode text by its byte order mark, HTTP header or meta element; None for other types."""
    if not _is_text(detected):
        return None
    for bom, name in _BOMS:
        if content.startswith(bom):
            return content[len(bom) :].decode(name, "replace")
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    stated = _CHARSET.search(content_type)
    known = map_encoding_to_html5(stated[1], fallback_utf8=False) if stated else None
    encoding = known or detect_encoding(content, from_html_meta=True) or "utf-8"
    return content.decode(encoding, "replace")


def parsed(text: str) -> Any:
    from resiliparse.parse.html import HTMLTree

    return HTMLTree.parse(text)


def title(tree: Any) -> str | None:
    if tree.document is None:
        return None
    found = tree.document.query_selector("title:not(svg title)")
    return " ".join(found.text.split()) if found is not None else None


def links(tree: Any, url: str) -> list[dict[str, str]]:
    """Return the absolute address and text of each link, without scripts."""
    if tree.document is None:
        return []
    start = _base(tree, url)
    found = []
    # values() at once: iteration would search from the start for each link
    for link in tree.document.query_selector_all("a[href], area[href]").values():
        address = _joined(start, link.getattr("href") or "")
        if address and not address.lower().startswith("javascript:"):
            words = link.text or link.getattr("alt") or ""
            found.append({"url": address, "text": " ".join(words.split())})
    return found


def embeds(tree: Any, url: str) -> list[str]:
    """Return the absolute URLs that a browser loads with a page, each once, without fragment.

    Those are of its images, scripts, style sheets, icons, frames, media and objects, and what the
    styles in the page name. Scripts are not run, and style sheets of their own are not read.
    """
    if tree.document is None:
        return []
    start = _base(tree, url)
    found: dict[str, None] = {}  # in order
    for element in tree.document.query_selector_all(_EMBEDDING).values():
        for href in _embedded(element):
            address = _joined(start, href).partition("#")[0]
            if href.strip() and address.lower().startswith(("http:", "https:", "ftp:")):
                found.setdefault(address)
    return list(found)


_SOURCES = ("src", "data", "poster", "background")
_EMBEDDING = (
    "img, script[src], iframe[src], frame[src], embed[src], audio[src], video, source, track[src], "
    "input[type=image], object[data], link[href][rel], [background], [style], style"
)
_LOADED = frozenset(("stylesheet", "icon", "apple-touch-icon", "mask-icon", "preload",
                     "modulepreload", "manifest"))  # values of rel  # fmt: skip
_IN_STYLE = re.compile(
    r"""url\(\s*+(?:"([^"]*+)"|'([^']*+)'|([^()"'\s]*+))\s*+\)|@import\s++(?:"([^"]*+)"|'([^']*+)')""",
    re.IGNORECASE,
)
_CANDIDATE = re.compile(r"[\s,]*(\S+)")


class Selector(NamedTuple):
    """What to take of the elements that a selector of CSS finds.

    As in Scrapy, ``a::attr(href)`` takes an attribute instead of the text; ``a::url(href)`` makes
    it an absolute URL.
    """

    css: str
    attribute: str  # empty: the text
    absolute: bool
    first: bool  # the first element only


_TAKEN = re.compile(r"(.*)::(attr|url)\(\s*([^\s()]+)\s*\)\s*", re.DOTALL)


def selector(text: str, *, first: bool) -> Selector:
    """Parse a selector; raises `BadInput`, also without the packages."""
    match = _TAKEN.fullmatch(text)
    css, kind, attribute = match.groups() if match else (text, "", "")
    if not is_installed():
        raise BadInput(f"selecting elements needs packages: {to_install('corpus')}")
    from resiliparse.parse.html import CSSParserException

    try:
        parsed("<p>").document.query_selector(css)
    except CSSParserException as error:
        raise BadInput(f"{text!r} is not a selector of CSS: {error}") from error
    return Selector(css, attribute, kind == "url", first)


def selected(tree: Any, url: str, selector: Selector) -> list[str] | str | None:
    """Return the texts, attributes or URLs that a selector finds, or the first; None for none.

    Space in texts is collapsed; elements without the attribute are left out.
    """
    values = _taken(tree, url, selector) if tree.document is not None else iter(())
    return next(values, None) if selector.first else list(values) or None


def _taken(tree: Any, url: str, selector: Selector) -> Iterator[str]:
    start = _base(tree, url) if selector.absolute else ""
    for element in tree.document.query_selector_all(selector.css).values():
        if not selector.attribute:
            yield " ".join(element.text.split())
            continue
        value = element.getattr(selector.attribute)
        if selector.absolute:
            value = (_joined(start, value) if value else "") or None
        if value is not None:
            yield value


def _embedded(element: Any) -> Iterator[str]:
    """Yield the addresses that an element embeds, as they are written."""
    if element.tag == "link":
        if _LOADED.intersection((element.getattr("rel") or "").lower().split()):
            yield element.getattr("href")
        return
    yield from filter(None, map(element.getattr, _SOURCES))
    yield from _candidates(element.getattr("srcset") or "")
    style = element.text if element.tag == "style" else element.getattr("style")
    for match in _IN_STYLE.finditer(style or ""):
        yield from filter(None, match.groups())


def _candidates(srcset: str) -> Iterator[str]:
    """Yield the URLs of a srcset (HTML Standard, section 4.8.4.2.1); descriptors are skipped."""
    at = 0
    while match := _CANDIDATE.match(srcset, at):
        yield match[1].rstrip(",")
        at = match.end()
        if not match[1].endswith(","):
            at = srcset.find(",", at)
            if at < 0:
                return


def _base(tree: Any, url: str) -> str:
    """Return the address that those in a page are relative to."""
    base = tree.document.query_selector("base[href]")
    return (_joined(url, base.getattr("href") or "") if base is not None else "") or url


def _joined(base: str, href: str) -> str:
    try:
        return urljoin(base, href.translate(_WITHIN).strip(_AROUND))
    except ValueError:  # such as "http://["
        return ""


def visible_text(tree: Any, *, main: bool = False) -> str:
    """Return the text, or only the `main` one, without menus, footers and comments."""
    from resiliparse.extract.html2text import extract_plain_text

    return str(extract_plain_text(tree, main_content=main, comments=not main))


def language(text: str) -> str | None:
    """Return the language code, such as ``en``; None if unknown or the text is too short."""
    if sum(map(str.isalpha, text[:_SNIFFED])) < _MIN_LETTERS:
        return None
    from resiliparse.parse.lang import detect_fast

    code = detect_fast(text)[0]
    return None if code == "unknown" else str(code)
