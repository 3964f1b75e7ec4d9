"""A strict reading of an HTML report with the standard library."""

import base64
import hashlib
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADING = {"src", "srcset", "href", "xlink:href", "poster", "data", "action", "background"}


class Reading(HTMLParser):
    """What a report holds: `problems` of nesting, accessibility and loading, and `text` by element.

    tags : every start tag with its attributes. ids : every id. text_of : the first text of an
        element by its id.
    script : the text of the scripts.
    """

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.text: list[tuple[str, str]] = []
        self.text_of: dict[str, str] = {}
        self.script = ""
        self._open: list[str] = []
        self._last_id = ""
        self.feed(document)
        self.close()
        self.problems += [f"<{tag}> is never closed" for tag in self._open]
        self._check()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID and "svg" not in self._open:
            self.problems.append(f"<{tag}/> does not close itself in HTML")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> inside {self._open[-3:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.script += data
            return
        if self._open and data.strip():
            self.text.append((self._open[-1], data.strip()))
            self.text_of.setdefault(self._last_id, data.strip())

    def texts(self, tag: str) -> list[str]:
        """Return the text of the elements of that name, one piece each."""
        return [text for name, text in self.text if name == tag]

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._last_id = dict(attrs).get("id") or ""
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def _check(self) -> None:
        self.problems += [
            f"id {name} twice" for name in sorted({i for i in self.ids if self.ids.count(i) > 1})
        ]
        for tag, attrs in self.tags:
            for name, value in attrs.items():
                text = value or ""
                if name in LOADING and not text.startswith(("#", "data:")):
                    self.problems.append(f"<{tag}> loads {text}")
                if name == "style" and "url(" in text and "url(#" not in text:
                    self.problems.append(f"<{tag}> loads {text}")
                if name.startswith("on"):
                    self.problems.append(f"<{tag}> has a script in {name}")
                if name in ("aria-labelledby", "aria-describedby"):
                    self.problems += [f"no element {i}" for i in text.split() if i not in self.ids]
                if (
                    text.startswith("#")
                    and name in ("href", "xlink:href")
                    and text[1:] not in self.ids
                ):
                    self.problems.append(f"no target {text}")
            if tag == "img" and "alt" not in attrs:
                self.problems.append("an image without alternative text")
            if tag == "svg" and not (attrs.get("role") == "img" and attrs.get("aria-labelledby")):
                self.problems.append("a drawing without alternative text")
            if tag == "th" and attrs.get("scope") not in ("row", "col"):
                self.problems.append("a header without scope")
            if tag in ("iframe", "object", "embed") or (
                tag == "script" and not self._allowed(attrs)
            ):
                self.problems.append(f"a <{tag}>")
        regions = [
            attrs.get("aria-label") or self.text_of.get(attrs.get("aria-labelledby") or "", "")
            for tag, attrs in self.tags
            if attrs.get("role", tag) in ("section", "region", "nav")
        ]
        self.problems += [
            f"two landmarks named {n!r}" for n in sorted(set(regions)) if regions.count(n) > 1
        ]
        levels = [int(tag[1]) for tag, _ in self.tags if tag in ("h1", "h2", "h3", "h4")]
        if levels[:1] != [1] or levels.count(1) != 1:
            self.problems.append(f"heading levels {levels}")
        self.problems += [
            f"no <{tag}>"
            for tag in ("main", "nav", "header", "footer")
            if tag not in dict(self.tags)
        ]

    def _allowed(self, attrs: dict[str, str | None]) -> bool:
        """Return whether the policy of the document names the hash of its scripts, which is then
        only one."""
        policies = [
            a.get("content") or ""
            for _, a in self.tags
            if a.get("http-equiv") == "Content-Security-Policy"
        ]
        digest = base64.b64encode(hashlib.sha256(self.script.encode()).digest()).decode()
        return not attrs and any(f"script-src 'sha256-{digest}'" in policy for policy in policies)
