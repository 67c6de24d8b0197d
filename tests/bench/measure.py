# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios through drive.c, and says what came of it in numbers."""

import collections
import dataclasses
import ipaddress
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

from scenarios import CNIBOX, FLOORS
from world import RUN

ROUNDS_MIN = 7
ROUNDS_MAX = 400
# strace needs minutes for who reads every one of more files than this.
COUNTED_RESERVATIONS_MAX = 1000
# Between the arguments of a call.
ARGUMENT = "\x1f"

Sample = collections.namedtuple("Sample", "wall cpu rss faults switches")


class NotThere(Exception):
    """A contestant cannot do what a scenario asks; the text says why."""


def plan(scenario, contestants, world):
    lines = []
    for contestant in contestants:
        lines.append(f"group\t{contestant.name}")
        for name, value in world.environment(contestant).items():
            lines.append(f"env\t{name}={value}")
        netns = world.netns(contestant, scenario)
        if netns:
            lines.append(f"netns\t{netns}")
        lines += steps(scenario, contestant, world)
    return "\n".join(lines) + "\n"


def steps(scenario, contestant, world):
    config = "-"
    if scenario.config:
        path = RUN / f"{scenario.name}.{contestant.name}.json"
        path.write_text(json.dumps(scenario.config(contestant, world)))
        config = str(path)
    executable = contestant.executable(scenario.plugin)
    for call in scenario.calls:
        if (scenario.name, call.verb) in contestant.skipped:
            continue
        if call.verb == "CHECK" and contestant.name in FLOORS:
            continue
        if call.verb == "ADD" and scenario.is_dense:
            # The addresses after this one are all taken.
            network = world.data_dir(contestant) / f"bench-{scenario.name}"
            for number, subnet in enumerate(subnets(scenario, contestant, world)):
                yield f"put\t{network}/last_reserved_ip.{number}\t{subnet[2]}"
        words = call.words(contestant, scenario, world) if call.words else [executable]
        fields = ["call", f"{contestant.name}/{call.verb}", words[0], ARGUMENT.join(map(str, words)), call.verb]
        fields += [call.at_once, config, call.result]
        yield "\t".join(map(str, fields))


def subnets(scenario, contestant, world):
    """Of every range set."""
    ranges = scenario.config(contestant, world)["ipam"]["ranges"]
    return [ipaddress.ip_network(range_set[0]["subnet"]) for range_set in ranges]


def drive(program, scenario, contestants, world, rounds, warmup, show=lambda text: None):
    """Samples by contestant and verb: lists of one entry per round (calls at once are one entry together)."""
    plan_path, samples_path = RUN / "plan", RUN / "samples"
    plan_path.write_text(plan(scenario, contestants, world))
    command = [str(program), str(plan_path), str(samples_path), str(rounds), str(warmup)]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        show(" of ".join(line.split()))
    said = process.stderr.read()
    if process.wait() != 0:
        raise NotThere(reason(said))
    return read_samples(samples_path)


def reason(said):
    """Whose call failed, and what its error object says, in one line."""
    who = re.search(r"drive: (\S+) failed", said)
    found = re.search(r'"msg": *"((?:[^"\\]|\\.)*)"', said)
    details = re.search(r'"details": *"((?:[^"\\]|\\.)*)"', said)
    text = "; ".join(match[1] for match in (found, details) if match)
    if not who or not text:
        return " ".join(said.split())[:200]
    return f"{who[1]}: {text}"


def read_samples(path):
    rounds = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in path.read_text().splitlines():
        identity, *numbers = line.split()
        number, container, *values = map(int, numbers)
        rounds[identity][number].append((container, *values))
    return {
        tuple(identity.split("/")): [together(calls) for _, calls in sorted(by_round.items())]
        for identity, by_round in rounds.items()
    }


def together(calls):
    """One sample of a round: wall of all together, CPU summed, the largest RSS, faults and switches per call."""
    single = [call for call in calls if call[0] != 0]
    wall = next((call[1] for call in calls if call[0] == 0), single[0][1])
    count = len(single)
    return Sample(
        wall / 1e6,
        sum(call[2] + call[3] for call in single) / 1e3,
        max(call[4] for call in single),
        sum(call[5] for call in single) / count,
        sum(call[6] for call in single) / count,
    )


def spread(values):
    """Median and quartiles."""
    values = sorted(values)
    if len(values) == 1:
        return [values[0]] * 3
    first, middle, third = statistics.quantiles(values, n=4, method="inclusive")
    return [middle, first, third]


def ratios(ours, theirs, field):
    """Round by round, so that what else the machine does hits both sides alike."""
    pairs = zip(ours, theirs)
    found = [getattr(a, field) / getattr(b, field) for a, b in pairs if getattr(b, field) > 0]
    return spread(found) if found else None


def count_calls(scenario, contestant, world):
    """System calls and processes of each verb, by strace; nothing where strace may not trace."""
    counts = {}
    environment = {name: value.replace("@", "1") for name, value in world.environment(contestant).items()}
    result = ""
    for step in steps(scenario, contestant, world):
        kind, *fields = step.split("\t")
        if kind == "put":
            pathlib.Path(fields[0]).write_text(fields[1])
            continue
        _, _, words, verb, _, config, keep = fields
        stdin = "" if config == "-" else pathlib.Path(config).read_text()
        if keep == "use":
            stdin = f'{stdin[:-1]},"prevResult":{result}}}'
        done = subprocess.run(
            ["strace", "-f", "-qq", "-o", str(RUN / "trace"), "-E", f"CNI_COMMAND={verb}", *words.split(ARGUMENT)],
            input=stdin, capture_output=True, text=True, env=os.environ | environment,
        )
        result = done.stdout if keep == "keep" else result
        if done.returncode == 0:
            counts[verb] = count_trace((RUN / "trace").read_text().splitlines())
    return counts


def count_trace(lines):
    calls = [line for line in lines if "resumed>" not in line and not re.match(r"\d+ +(\+\+\+|---)", line)]
    executed = sum(1 for line in calls if " execve(" in line and not line.endswith("ENOENT (No such file or directory)"))
    return {"calls": len(calls), "processes": executed}


class Bench:
    """All scenarios, one after the other, with the rounds that fit into the time that each has."""

    def __init__(self, world, contestants, program, seconds, counts):
        self.world, self.contestants, self.program = world, contestants, program
        self.seconds, self.counts = seconds, counts

    def measure(self, scenario):
        able, absent = [], []
        for contestant in self.contestants:
            if not scenario.takes(contestant):
                continue
            if scenario.reservations is not None:
                self.world.reserve(contestant, scenario, subnets(scenario, contestant, self.world))
            if scenario.plugins:
                self.world.write_list(contestant, scenario)
            if scenario.ports:
                self.world.publish(contestant, scenario)
            show(f"{scenario.title}: trying {contestant.name}")
            try:
                started = time.monotonic()
                absent += self.probe(scenario, contestant)
                able.append((contestant, time.monotonic() - started))
            except NotThere as error:
                absent.append({"contestant": contestant.name, "reason": str(error)})
        rows = self.rows(scenario, [contestant for contestant, _ in able], sum(took for _, took in able))
        return {"name": scenario.name, "title": scenario.title, "rows": rows, "absent": absent}

    def probe(self, scenario, contestant):
        if not contestant.executable(scenario.plugin).exists():
            raise NotThere(f"it has no plugin {scenario.plugin}")
        try:
            drive(self.program, scenario, [contestant], self.world, 1, 0)
            return []
        except NotThere as error:
            if not str(error).startswith(f"{contestant.name}/CHECK"):
                raise
            # Some cannot check what they have added; the rest is measured all the same.
            only_del = dataclasses.replace(scenario, calls=[c for c in scenario.calls if c.verb == "DEL"])
            drive(self.program, only_del, [contestant], self.world, 1, 0)
            contestant.skipped.add((scenario.name, "CHECK"))
            return [{"contestant": contestant.name, "reason": str(error)}]

    def rows(self, scenario, contestants, round_s):
        if not contestants:
            return []
        rounds = max(ROUNDS_MIN, min(ROUNDS_MAX, int(self.seconds / max(round_s, 0.001))))
        samples = drive(
            self.program, scenario, contestants, self.world, rounds, warmup=2,
            show=lambda text: show(f"{scenario.title}: round {text}"),
        )
        rows = []
        for call in (call for call in scenario.calls if call.is_shown):
            ours = samples.get((CNIBOX, call.verb))
            for contestant in contestants:
                theirs = samples.get((contestant.name, call.verb))
                if theirs:
                    rows.append(self.row(call, contestant, theirs, ours))
        self.add_counts(scenario, contestants, rows)
        return rows

    @staticmethod
    def row(call, contestant, theirs, ours):
        row = {"verb": call.verb, "contestant": contestant.name, "at_once": call.at_once, "rounds": len(theirs)}
        row["wall_ms"] = spread([sample.wall for sample in theirs])
        row["cpu_ms"] = spread([sample.cpu for sample in theirs])
        row["rss_kb"] = max(sample.rss for sample in theirs)
        row["faults"] = statistics.median(sample.faults for sample in theirs)
        if ours and contestant.name != CNIBOX:
            row["cnibox_wall"] = ratios(ours, theirs, "wall")
            row["cnibox_cpu"] = ratios(ours, theirs, "cpu")
        return row

    def add_counts(self, scenario, contestants, rows):
        if not self.counts or scenario.calls[0].at_once > 1:
            return
        for contestant in contestants:
            if contestant.name != CNIBOX and (scenario.reservations or 0) > COUNTED_RESERVATIONS_MAX:
                continue
            show(f"{scenario.title}: counting the system calls of {contestant.name}")
            counts = count_calls(scenario, contestant, self.world)
            for row in rows:
                if row["contestant"] == contestant.name:
                    row |= counts.get(row["verb"], {})


def show(text):
    """Progress: one line that changes on a terminal, lines elsewhere only for what is new."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:110]}", end="", file=sys.stderr, flush=True)
    else:
        subject = text.split(": round")[0]
        if subject != show.last:
            print(subject, file=sys.stderr, flush=True)
        show.last = subject


show.last = ""
