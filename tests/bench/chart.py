# SPDX-License-Identifier: Apache-2.0
"""Draws the chart of the README: wall times on a logarithmic scale, readable on light and on dark pages."""

import math
from html import escape

from scenarios import C_PROGRAMS, CNIBOX, FEW

# The measurements that the chart shows.
SHOWN = [
    ("version", "VERSION"),
    ("bridge", "ADD"),
    ("bridge", "DEL"),
    ("bridge-64-at-once", "ADD"),
    ("bridge-dual", "ADD"),
    ("bridge-dual-masq", "ADD"),
    ("bridge-dual-masq", "DEL"),
    ("veth-dual", "ADD"),
    ("portmap", "ADD"),
    ("host-local-0", "ADD"),
    ("host-local-60000", "ADD"),
]
WIDTH, LEFT, RIGHT, TOP = 900, 340, 90, 64
BAR, GAP, GROUP_GAP = 14, 2, 14

STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 11px; fill: #57606a }
  .grid { stroke: #8c959f; stroke-opacity: .3 }
  .cnibox { fill: #1a7f37 } .floor, .duties, .empty { fill: #8c959f } .other { fill: #bf5b16 } .third { fill: #6639ba }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 }
    .cnibox { fill: #3fb950 } .floor, .duties, .empty { fill: #6e7681 } .other { fill: #db8a4a } .third { fill: #a371f7 }
  }
"""


def bars(results):
    """Groups of (title, [(contestant, milliseconds)])."""
    by_name = {scenario["name"]: scenario for scenario in results["scenarios"]}
    groups = []
    for name, verb in SHOWN:
        rows = [row for row in by_name.get(name, {"rows": []})["rows"] if row["verb"] == verb]
        if rows:
            title = by_name[name]["title"]
            title = title if name == "version" else f"{title}: {verb}"
            groups.append((title, [(row["contestant"], row["wall_ms"][0]) for row in rows]))
    return groups


def kind(contestant, names):
    if contestant in (CNIBOX, *C_PROGRAMS):
        return contestant
    others = [name for name in names if name not in (CNIBOX, FEW, *C_PROGRAMS)]
    return "other" if contestant == others[0] else "third"


def milliseconds(value):
    return f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms"


def draw(results):
    groups = bars(results)
    values = [value for _, group in groups for _, value in group] or [1]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values) * 1.01))
    height = TOP + sum(len(group) * (BAR + GAP) + GROUP_GAP for _, group in groups) + 30

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img"><title>Wall time of calls, logarithmic scale, shorter is better</title>',
        f"<style>{STYLE}</style>",
        f'<text x="0" y="18">Wall time of the whole process, median; logarithmic scale, shorter is better</text>',
        f'<text class="small" x="0" y="36">{escape(caption(results))}</text>',
    ]
    tick = low
    while tick <= high:
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" y1="{TOP - 6}" x2="{x(tick):.1f}" y2="{height - 26}"/>')
        parts.append(f'<text class="small" x="{x(tick):.1f}" y="{height - 10}" text-anchor="middle">{tick:g} ms</text>')
        tick *= 10
    y = TOP
    for title, group in groups:
        middle = y + len(group) * (BAR + GAP) / 2 + 4
        parts.append(f'<text x="{LEFT - 62}" y="{middle:.1f}" text-anchor="end">{escape(title)}</text>')
        for contestant, value in group:
            name = kind(contestant, results["contestants"])
            parts.append(f'<text class="small" x="{LEFT - 6}" y="{y + 11}" text-anchor="end">{escape(contestant)}</text>')
            parts.append(f'<rect class="{name}" x="{LEFT}" y="{y}" width="{x(value) - LEFT:.1f}" height="{BAR}" rx="2"/>')
            parts.append(f'<text class="small" x="{x(value) + 5:.1f}" y="{y + 11}">{milliseconds(value)}</text>')
            y += BAR + GAP
        y += GROUP_GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def caption(results):
    machine = results["machine"]
    return f"{results['date']}, {machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, cnibox {results['commit']}"
