# SPDX-License-Identifier: Apache-2.0
"""What is written of the results: a table for people, JSON for programs, a chart for the README."""

import json

import chart
from scenarios import CHAIN, CNIBOX, DUTIES, EMPTY, FEW, FLOOR, RESERVATIONS, SCALES

# The budgets of the design: scenario, verb, the contestant to compare with, the ratio, and its limit.
BUDGETS = [
    ("version", "VERSION", EMPTY, "wall", 2.2),
    ("bridge", "ADD", DUTIES, "wall", 1.4),
    ("bridge", "ADD", DUTIES, "cpu", 1.4),
    ("bridge", "DEL", FLOOR, "wall", 1.15),
    ("bridge-rules", "DEL", FEW, "wall", 1.2),
    ("portmap-many", "ADD", FEW, "wall", 1.2),
    ("portmap-many", "DEL", FEW, "wall", 1.2),
    ("portmap-many", "DEL", FEW, "cpu", 1.2),
    ("runtime", "ADD", CHAIN, "wall", 0.6),
    ("runtime", "DEL", CHAIN, "wall", 0.5),
    ("gc", "GC", FEW, "wall", 30),
    ("bridge-dual-masq", "ADD", "go", "wall", 1 / 15),
    ("veth-dual", "ADD", "go", "wall", 1 / 200),
]
SCALE_MAX = 1.2
RSS_KB_MAX = 1792
# They are calls of a runtime, with all plugins of a list or all attachments of a network in one process.
WITH_RUNTIME = ("runtime", "gc")


def write(results, directory):
    directory.mkdir(parents=True, exist_ok=True)
    results["budgets"] = budgets(results)
    text = table(results)
    (directory / "bench.txt").write_text(text)
    (directory / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    (directory / "bench.svg").write_text(chart.draw(results))
    print(text, end="")
    print(f"\nwritten to {directory}: bench.txt, bench.json, bench.svg")


def row_of(results, scenario, verb, contestant):
    for found in results["scenarios"]:
        if found["name"] == scenario:
            for row in found["rows"]:
                if (row["verb"], row["contestant"]) == (verb, contestant):
                    return row
    return None


def budgets(results):
    """Each promise with what was measured; None where nothing was."""
    judged = []
    for scenario, verb, contestant, field, allowed in BUDGETS:
        row = row_of(results, scenario, verb, contestant)
        measured = row and row.get(f"cnibox_{field}")
        what = f"{scenario} {verb}: {field} of cnibox against {contestant}"
        judged.append(judgement(what, measured and measured[0], allowed, ratio))
    for kind, *_ in SCALES:
        for verb in ("ADD", "CHECK", "DEL"):
            for field in ("wall", "cpu"):
                judged.append(scale(results, kind, verb, field))
    of_plugins = [scenario for scenario in results["scenarios"] if scenario["name"] not in WITH_RUNTIME]
    rows = [row for scenario in of_plugins for row in scenario["rows"] if row["contestant"] == CNIBOX]
    largest = max((row["rss_kb"] for row in rows), default=None)
    judged.append(judgement("peak RSS of any plugin call of cnibox", largest, RSS_KB_MAX, lambda kb: f"{kb:.0f} kB"))
    processes = row_of(results, "bridge", "ADD", CNIBOX)
    processes = processes and processes.get("processes")
    judged.append(judgement("processes of bridge ADD", processes, 1, str))
    return judged


def scale(results, kind, verb, field):
    few = row_of(results, f"host-local-{kind}", verb, FEW)
    measured = few and few[f"cnibox_{field}"][0]
    what = f"host-local {verb}: {field} at {RESERVATIONS[-1]:,} ({kind}) against {RESERVATIONS[0]}"
    return judgement(what, measured, SCALE_MAX, ratio)


def judgement(what, measured, allowed, spell):
    state = "not measured" if measured is None else "met" if measured <= allowed else "NOT MET"
    return {
        "what": what,
        "measured": None if measured is None else spell(measured),
        "allowed": spell(allowed),
        "state": state,
    }


def ratio(value):
    return f"{value:.2f}" if value >= 0.5 else f"1/{1 / value:.1f}"


def table(results):
    machine = results["machine"]
    lines = [
        f"cnibox {results['commit']}, {results['date']}" + (", a quick look, not to be quoted" if results["quick"] else ""),
        f"{machine['cpu']}, {machine['cpus']} CPUs{' (a virtual machine)' if machine['virtual'] else ''}, "
        f"{machine['memory_mb']} MB, Linux {machine['kernel']}, {machine['system']}, load {machine['load']:.1f}",
        "",
    ]
    for name, contestant in results["contestants"].items():
        size = contestant.get("bytes")
        on_disk = f"; {size['all']:,} bytes on disk, bridge and host-local {size['bridge_and_host_local']:,}" if size else ""
        lines.append(f"{name:10} {contestant['label']}{on_disk}")
    lines += ["", "Medians, with quartiles in brackets. Ratios are cnibox's share of the line's, taken round by round.", ""]
    header = ("", "wall ms", "CPU ms", "cnibox wall", "cnibox CPU", "RSS kB", "faults", "syscalls", "processes", "rounds")
    rows = [header]
    for scenario in results["scenarios"]:
        rows.append((scenario["title"],))
        rows += [cells(row) for row in scenario["rows"]]
        for absent in scenario["absent"]:
            state = "not there yet" if absent["contestant"] == CNIBOX else "cannot"
            rows.append((f"  {absent['contestant']}: {state}: {absent['reason']}",))
    lines += aligned(rows)
    lines += ["", "Budgets"]
    for budget in results["budgets"]:
        measured = budget["measured"] or "-"
        lines.append(f"  {budget['state']:12} {budget['what']}: {measured} (at most {budget['allowed']})")
    return "\n".join(lines) + "\n"


def cells(row):
    def spread(values, spell):
        return f"{spell(values[0])} [{spell(values[1])} {spell(values[2])}]" if values else ""

    def shares(values):
        """Below a half, the way people say it: one seventh, not 0.14."""
        if not values or values[0] >= 0.5:
            return spread(values, lambda value: f"{value:.2f}")
        return spread(values, lambda value: f"1/{1 / value:.1f}")

    def milliseconds(value):
        return f"{value:.3f}" if value < 10 else f"{value:.1f}"

    return (
        f"  {row['verb']:7} {row['contestant']}",
        spread(row["wall_ms"], milliseconds),
        spread(row["cpu_ms"], milliseconds),
        shares(row.get("cnibox_wall")),
        shares(row.get("cnibox_cpu")),
        f"{row['rss_kb']}",
        f"{row['faults']:.0f}",
        f"{row.get('calls', '')}",
        f"{row.get('processes', '')}",
        f"{row['rounds']}",
    )


def aligned(rows):
    columns = max(len(row) for row in rows)
    full = [row for row in rows if len(row) == columns]
    widths = [max(len(row[column]) for row in full) for column in range(columns)]
    for row in rows:
        if len(row) == 1:
            yield row[0]
            continue
        first = row[0].ljust(widths[0])
        yield "  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
