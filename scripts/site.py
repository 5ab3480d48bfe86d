"""What the site has beside docs/: the README as its first page, files that pages link to, the API.

On the repository's own pages links lead to files of the repository. The site has pages only, so a
file that is linked to becomes one, with its text; and `docs/api.md`, which lists what is public,
becomes a page of reference for each of its areas, made from docstrings.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FENCED = re.compile(r"^(```|~~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
AREA = re.compile(r"^## (.*)\n((?:(?!^## ).*\n?)*)", re.MULTILINE)
ROW = re.compile(r"^\| `(\S+)` \| (.*?) \| (.*?) ?\|$", re.MULTILINE)
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*"
)
REPOSITORY = "repository"
OF_PYSPARK = {"millrace.Window"}
"""Names that are PySpark's own, which the site's environment does not have."""
KINDS = {".py": "python", ".toml": "toml", ".sh": "bash", ".yml": "yaml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the navigation where it names a folder; pages it forgets come last."""
    docs = Path(config.docs_dir)
    areas = [f"api/{slug(title)}.md" for title, _ in AREA.findall(read(docs / "api.md"))]
    lists = {"design": ["design/index.md", *numbered(docs)], "api": ["api.md", *areas]}
    nav = [{title: lists.get(str(to), to) for title, to in item.items()} for item in config.nav]
    named = str(nav)
    forgotten = [path.name for path in sorted(docs.glob("*.md")) if path.name not in named]
    config.nav = [*nav, {"More": forgotten}] if forgotten else nav
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests have no mkdocs

    root = Path(config.docs_dir).parent
    pending = [path for path in files.src_uris if path.endswith(".md")]
    for uri, text in made_pages(root, pending).items():
        files.append(File.generated(config, uri, content=text))
    return files


def made_pages(root: Path, written: list[str]) -> dict[str, str]:
    """The pages that the site has beside those that are written, with their texts."""
    made = {"index.md": read(root / "README.md"), "design/index.md": decisions(root)}
    made |= reference(read(root / "docs" / "api.md"))
    pending = [*written, *made]
    while pending:
        uri = pending.pop()
        text = made.get(uri) or read(root / origin(uri))
        for target in targets(text, origin(uri)):
            place = uri_of(target)
            if not place.startswith(f"{REPOSITORY}/") or place in made:
                continue
            if (root / target).exists():
                made[place] = shown(root, target)
                pending.append(place)
    return made


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Have links lead to the site's pages."""
    root, uri = Path(config.docs_dir).parent, page.file.src_uri
    here = posixpath.dirname(uri)

    def link(found: re.Match[str]) -> str:
        target = resolved(found[2], origin(uri))
        if target is None or not (root / target).exists():
            return found[0]
        place = posixpath.relpath(uri_of(target), here or ".")
        return f"{found[1]}{place}{found[3] or ''}{found[4]}"

    text = outside_code(markdown, lambda part: LINK.sub(link, part))
    return with_reference(text) if uri == "api.md" else text


def on_post_build(*, config: MkDocsConfig) -> None:
    """Refuse a page that would fetch something from elsewhere: the site is to be read anywhere."""
    from mkdocs.exceptions import PluginError  # noqa: PLC0415 - the tests have no mkdocs

    for page in sorted(Path(config.site_dir).rglob("*.html")):
        found = FETCHED.search(read(page))
        if found:
            raise PluginError(f"{page} would fetch {found[0]}")


def origin(uri: str) -> str:
    """Where a page's text comes from, within the repository."""
    if uri == "index.md":
        return "README.md"
    if uri.startswith(f"{REPOSITORY}/"):
        path = uri.removeprefix(f"{REPOSITORY}/")
        return path if path.count(".md") == 1 and is_text(path) else path.removesuffix(".md")
    return f"docs/{uri}"


def uri_of(target: str) -> str:
    """The page of the site that shows a file or folder of the repository."""
    if target == "README.md":
        return "index.md"
    if target.startswith("docs/"):
        inside = target.removeprefix("docs/")
        return inside if "." in posixpath.basename(inside) else f"{inside}/index.md"
    return f"{REPOSITORY}/{target if is_text(target) else target + '.md'}"


def is_text(path: str) -> bool:
    """Whether a file outside docs/ is written as our pages are."""
    return path == "CHANGELOG.md"


def targets(text: str, where: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    for found in LINK.finditer(FENCED.sub("", text)):
        target = resolved(found[2], where)
        if target is not None:
            yield target


def resolved(link: str, where: str) -> str | None:
    """The path that a link leads to, seen from the repository's root; None if it is none."""
    if "://" in link or link.startswith(("/", "mailto:")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(where), link))


def shown(root: Path, target: str) -> str:
    """A page for a file or a folder of the repository."""
    path = root / target
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if is_shown(p))
        name = posixpath.basename(target)
        return f"# {target}/\n\n" + "".join(f"- [{each}]({name}/{each})\n" for each in names)
    text = read(path)
    if is_text(target):
        return text
    return f"# {target}\n\n~~~~{KINDS.get(path.suffix, 'text')}\n{text}\n~~~~\n"


def is_shown(path: Path) -> bool:
    """Whether a file of a folder is worth a page."""
    return path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")


def numbered(docs: Path) -> list[str]:
    """The decisions, in their order."""
    return [f"design/{path.name}" for path in sorted((docs / "design").glob("*.md"))]


def decisions(root: Path) -> str:
    """A page that lists the decisions by their titles."""
    lines = ["# Design decisions", "", "What was decided, and what was rejected.", ""]
    for uri in numbered(root / "docs"):
        title = read(root / "docs" / uri).partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({posixpath.basename(uri)})")
    return "\n".join(lines) + "\n"


def reference(listing: str) -> dict[str, str]:
    """A page for each area of the listing of public names."""
    pages = {}
    for title, body in AREA.findall(listing):
        intro = body.split("\n|")[0].strip()
        parts = [f"# {title}\n\n{rebased(intro)}\n"]
        for name, what, members in ROW.findall(body):
            if name in OF_PYSPARK:
                parts.append(f'## `{name}` <a id="{name}"></a>\n\n{what}\n')
                continue
            parts.append(f"::: {name}\n    options:\n      members: {members_of(members)}\n")
        pages[f"api/{slug(title)}.md"] = "\n".join(parts)
    return pages


def rebased(intro: str) -> str:
    """Links of the listing, as they are one folder further down."""
    return LINK.sub(lambda found: f"{found[1]}../{found[2]}{found[3] or ''}{found[4]}", intro)


def members_of(cell: str) -> str:
    """Which members are shown, as an option."""
    if cell == "all":
        return "null"
    return "[" + ", ".join(re.findall(r"`(\w+)`", cell)) + "]"


def with_reference(listing: str) -> str:
    """The listing with each name linked to what is said about it."""

    def area(found: re.Match[str]) -> str:
        page = f"api/{slug(found[1])}.md"
        body = ROW.sub(rf"| [`\1`]({page}#\1) | \2 | \3 |", found[2])
        return f"## {found[1]}\n{body}"

    return AREA.sub(area, listing)


def slug(title: str) -> str:
    """The name of an area's page."""
    return title.lower().replace(" ", "-")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a text, and leave the code in it alone."""
    out, end = [], 0
    for found in FENCED.finditer(text):
        out += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*out, change(text[end:])])


def read(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")
