#!/usr/bin/env python3
"""Traffic that shows how long a change of the host's rules interrupts it.

    flow.py serve PORT          answers TCP and UDP at this port with what it gets
    flow.py ask ADDRESS PORT    until SIGTERM: an established TCP and an established UDP flow that ask every 20 ms, and a new TCP
                                connection every 20 ms. Prints `ready` once each has had an answer; at the end the longest time
                                without an answer, in milliseconds: `tcp 21 udp 20 new 134`
"""

import os
import signal
import socket
import socketserver
import sys
import threading
import time

PERIOD = 0.02


class TcpEcho(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(4096):
            self.request.sendall(data)


class UdpEcho(socketserver.BaseRequestHandler):
    def handle(self):
        data, answering = self.request
        answering.sendto(data, self.client_address)


class TcpServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def serve(port):
    udp = socketserver.UDPServer(("", port), UdpEcho)
    threading.Thread(target=udp.serve_forever, daemon=True).start()
    TcpServer(("", port), TcpEcho).serve_forever()


class Flow:
    """The times of the answers that one kind of traffic gets."""

    def __init__(self, name):
        self.name, self.longest, self.last = name, 0, None
        self.answered = threading.Event()

    def note(self):
        now = time.monotonic()
        if self.last is not None:
            self.longest = max(self.longest, now - self.last)
        self.last = now
        self.answered.set()

    def pause_ms(self):
        # It may still have no answer.
        return round(1000 * max(self.longest, time.monotonic() - self.last))


def established(flow, asking):
    """Asks and notes the answers of one connected socket, each by a thread of its own. The end of a TCP connection ends the program."""

    def failed(error):
        if asking.type == socket.SOCK_STREAM:  # for UDP it is an ICMP message
            print(f"the established {flow.name} flow ended: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def ask():
        while True:
            try:
                asking.send(b"x")
            except OSError as error:
                failed(error)
            time.sleep(PERIOD)

    def hear():
        while True:
            try:
                if asking.recv(4096):
                    flow.note()
                else:
                    failed("the other end has closed it")
            except OSError as error:
                failed(error)

    for part in ask, hear:
        threading.Thread(target=part, daemon=True).start()


def new(flow, target):
    while True:
        try:
            with socket.create_connection(target, timeout=0.1) as asking:
                asking.send(b"x")
                if asking.recv(1):
                    flow.note()
        except OSError:
            pass
        time.sleep(PERIOD)


def ask(address, port):
    target = (address, port)
    tcp, udp, fresh = flows = [Flow(name) for name in ("tcp", "udp", "new")]
    established(tcp, socket.create_connection(target))
    asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asking.connect(target)
    established(udp, asking)
    threading.Thread(target=new, args=(fresh, target), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    for flow in flows:
        if not flow.answered.wait(20):
            sys.exit(f"no answer to {flow.name}")
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    print(*(f"{flow.name} {flow.pause_ms()}" for flow in flows))


match sys.argv[1:]:
    case ["serve", port]:
        serve(int(port))
    case ["ask", address, port]:
        ask(address, int(port))
    case _:
        sys.exit(__doc__)
