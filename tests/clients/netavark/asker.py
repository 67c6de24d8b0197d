"""Asks a server of names all the time: asker.py SERVER RATE NAME=ADDRESS...

Asks for the names in turn, RATE times a second, until SIGTERM; then prints how many queries it sent, how many of them had no answer, how
many had another answer, how many questions had none after all repetitions, and the longest time without an answer, in ms.
"""

import select
import signal
import socket
import struct
import sys
import time

PATIENCE = 2.0
TRIES = 3


def query(number, name):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)


def end_of_name(packet, at):
    while packet[at] and packet[at] < 0xC0:
        at += packet[at] + 1
    return at + (2 if packet[at] else 1)


def addresses(packet):
    """The addresses of an answer, or its error."""
    _, flags, _, answers, _, _ = struct.unpack_from("!6H", packet)
    if flags & 15:
        return f"error {flags & 15}"
    found = []
    at = end_of_name(packet, 12) + 4
    for _ in range(answers):
        at = end_of_name(packet, at)
        kind, _, _, length = struct.unpack_from("!HHIH", packet, at)
        if kind == 1:
            found.append(socket.inet_ntoa(packet[at + 10 : at + 14]))
        at += 10 + length
    return ",".join(sorted(found))


class Asker:
    def __init__(self, server, wanted):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.server, self.wanted = (server, 53), wanted
        # By the number of the query: the name, the time, and how many times it was asked before.
        self.pending = {}
        self.sent = self.lost = self.wrong = self.unanswered = 0
        self.last_answer, self.longest = time.monotonic(), 0.0

    def ask(self, name, tries=0):
        self.sent += 1
        number = self.sent % 65536
        self.pending[number] = (name, time.monotonic(), tries)
        self.socket.sendto(query(number, name), self.server)

    def receive(self, seconds):
        if not select.select([self.socket], [], [], max(0, seconds))[0]:
            return
        packet = self.socket.recv(4096)
        name, _, _ = self.pending.pop(struct.unpack_from("!H", packet)[0], (None, 0, 0))
        if name is None:
            return
        now = time.monotonic()
        self.longest, self.last_answer = max(self.longest, now - self.last_answer), now
        if addresses(packet) != self.wanted[name]:
            self.wrong += 1
            print(f"{name} is {addresses(packet)}, not {self.wanted[name]}", file=sys.stderr)

    def repeat(self):
        """A resolver repeats a query that had no answer."""
        end = time.monotonic() - PATIENCE
        late = [number for number, (_, sent, _) in self.pending.items() if sent < end]
        for number in late:
            name, _, tries = self.pending.pop(number)
            self.lost += 1
            if tries + 1 < TRIES:
                self.ask(name, tries + 1)
            else:
                self.unanswered += 1


def main():
    ends = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(True))
    wanted = dict(pair.split("=") for pair in sys.argv[3:])
    asker, pause = Asker(sys.argv[1], wanted), 1 / float(sys.argv[2])
    names, asked, due = list(wanted), 0, time.monotonic()
    while not ends or asker.pending:
        if not ends and time.monotonic() >= due:
            asker.ask(names[asked % len(names)])
            asked, due = asked + 1, due + pause
        asker.receive(min(due - time.monotonic(), pause) if not ends else 0.1)
        asker.repeat()
    print(asker.sent, asker.lost, asker.wrong, asker.unanswered, round(asker.longest * 1000))


main()
