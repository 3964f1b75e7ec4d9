"""Check a built site: every link and fragment inside it exists, and no page loads anything from the
network.

python docs/check_site.py SITE
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("link", "href"),
    ("use", "href"),
}
NOT_LOADED = {"canonical", "next", "prev", "index", "search", "author", "copyright"}
REMOTE = re.compile(r"url\(\s*['\"]?(?:https?:)?//|@import\s+(?:url\()?\s*['\"]?(?:https?:)?//")


class Page(HTMLParser):
    """The identifiers of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.identifiers: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element names, links to and loads."""
        found = {name: value or "" for name, value in attrs}
        self.identifiers |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if not set(found.get("rel", "").split()) & NOT_LOADED:
            self.loads += [
                found[name] for element, name in LOADS if element == tag and name in found
            ]


def problems(site: Path) -> list[str]:
    """Return one line per broken link and per load from the network."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where}: loads {load}" for load in page.loads if urlsplit(load).netloc]
        for link in {*page.links, *page.loads}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{where}: no target {link}")
            elif (
                parts.fragment
                and target in pages
                and unquote(parts.fragment) not in pages[target].identifiers
            ):
                found.append(f"{where}: no fragment {link}")
    for sheet in site.rglob("*.css"):
        if REMOTE.search(sheet.read_text(encoding="utf-8")):
            found.append(f"{sheet.relative_to(site)}: loads from the network")
    return found


def main() -> None:
    """Print the problems of the site and exit with one if there are any."""
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    for line in found:
        print(line)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} problems")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
