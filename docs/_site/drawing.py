"""SVG with boxes, arrows and text that is readable on light and dark backgrounds.

On the site, drawings are inlined and use the colours of the theme, which readers can switch. As an image, in a README for
example, they follow the setting of the system.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

TONES = {
    "plain": "#8a93a3",
    "blue": "#3f8fd6",
    "green": "#3aa76d",
    "amber": "#d9962b",
    "red": "#d65a5a",
    "violet": "#8d6fd1",
}
"""Border colours; areas have the same colour with little opacity."""

_STYLE = """\
<style>
.d { --ink: var(--md-default-fg-color, #24292f); --soft: var(--md-default-fg-color--light, #57606a);
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 14px }
@media (prefers-color-scheme: dark) { .d { --ink: var(--md-default-fg-color, #e6edf3); --soft: var(--md-default-fg-color--light, #9da7b3) } }
.d text { fill: var(--ink) } .d .soft { fill: var(--soft); font-size: 12px } .d .mono { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 12.5px }
.d .bold { font-weight: 600 } .d .line { stroke: var(--soft); fill: none; stroke-width: 1.5 } .d .tip { fill: var(--soft) }
</style>"""


@dataclass
class Drawing:
    """Collects shapes and turns them into an SVG document."""

    width: int
    height: int
    title: str
    shapes: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, w: float, h: float, *lines: str, tone: str = "plain", mono: bool = False
    ) -> None:
        """Draw a box with centred lines; the first is bold, and lines that begin with `~` are small."""
        color = TONES[tone]
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{color}" fill-opacity="0.16" stroke="{color}"/>'
        )
        top = y + h / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            kind = "soft" if line.startswith("~") else "bold" if number == 0 and len(lines) > 1 else ""
            self.text(
                x + w / 2,
                top + 18 * number,
                line.removeprefix("~"),
                anchor="middle",
                kind=f"{kind}{' mono' if mono else ''}",
            )

    def frame(self, x: float, y: float, w: float, h: float, label: str, tone: str = "plain") -> None:
        """Draw a dashed frame with a label at its upper left."""
        self.shapes.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="9" fill="none" stroke="{TONES[tone]}" stroke-dasharray="5 4"/>'
        )
        self.text(x + 10, y + 18, label, kind="soft")

    def circle(self, x: float, y: float, r: float, tone: str = "blue") -> None:
        """Draw a dot, such as a snapshot."""
        self.shapes.append(
            f'<circle cx="{x}" cy="{y}" r="{r}" fill="{TONES[tone]}" fill-opacity="0.35" stroke="{TONES[tone]}" stroke-width="1.5"/>'
        )

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> None:
        """Write one line."""
        self.shapes.append(
            f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind.strip()}">{escape(text)}</text>'
        )

    def arrow(
        self, *points: tuple[float, float], label: str = "", dashed: bool = False, above: bool = True
    ) -> None:
        """Draw a line through points with a tip at its end, and a label at its middle."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(f'<polyline points="{path}" class="line"{dash}/>')
        self._tip(points[-2], points[-1])
        if label:
            (x1, y1), (x2, y2) = points[len(points) // 2 - 1], points[len(points) // 2]
            shift = (0, -7 if above else 16) if abs(x2 - x1) >= abs(y2 - y1) else (8, 4)
            anchor = "middle" if shift[0] == 0 else "start"
            self.text((x1 + x2) / 2 + shift[0], (y1 + y2) / 2 + shift[1], label, anchor=anchor, kind="soft")

    def line(self, *points: tuple[float, float]) -> None:
        """Draw a line without a tip."""
        self.shapes.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" class="line"/>')

    def svg(self) -> str:
        """Return the document, without blank lines, so that Markdown takes it as one block."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" class="d" role="img" aria-label="{escape(self.title)}">'
        return "\n".join([head, _STYLE, *self.shapes, "</svg>"]) + "\n"

    def _tip(self, before: tuple[float, float], end: tuple[float, float]) -> None:
        dx, dy = end[0] - before[0], end[1] - before[1]
        length = (dx * dx + dy * dy) ** 0.5 or 1
        ux, uy = dx / length, dy / length
        left = (end[0] - 9 * ux + 4.5 * uy, end[1] - 9 * uy - 4.5 * ux)
        right = (end[0] - 9 * ux - 4.5 * uy, end[1] - 9 * uy + 4.5 * ux)
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in (end, left, right))
        self.shapes.append(f'<polygon points="{corners}" class="tip"/>')
