#!/usr/bin/env python3
"""As much of a kubelet as a network plugin sees of it: pod sandboxes, by the CRI (v1) of the runtime at a socket.

    cri.py SOCKET run NAME PORT...   starts a sandbox with limits of bandwidth; prints its id. A PORT is that of the host for port 80,
                                     or HOST:CONTAINER[/udp]
    cri.py SOCKET status ID       prints its addresses, one per line
    cri.py SOCKET stop ID
    cri.py SOCKET remove ID
    cri.py SOCKET storm COUNT AT_ONCE PORT
                                  starts COUNT sandboxes, so many at once, with ports from PORT on, then stops and removes them. Prints
                                  four times in seconds: to start all, the slowest one, to remove all, the slowest one
    cri.py SOCKET ready           whether the runtime says that its network is, which it learns by STATUS where there is one
"""

import concurrent.futures
import sys
import time

import grpc

LIMITS = {"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}


def field(number, value):
    """One field of a message of protobuf: a number or anything with a length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def fields(message):
    """Pairs of a field's number and its value, in the order in which they are."""
    at = 0

    def take_varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(take_varint(), 8)
        if kind == 0:
            yield number, take_varint()
        else:
            length = take_varint()
            yield number, message[at : at + length]
            at += length


def one(message, number):
    return next((value for found, value in fields(message) if found == number), b"")


def sandbox(name, ports):
    metadata = field(1, name) + field(2, f"uid-{name}") + field(3, "default")
    mappings = [field(5, mapping(port)) for port in ports]
    annotations = [field(7, field(1, key) + field(2, value)) for key, value in LIMITS.items()]
    return field(1, metadata) + field(2, name) + b"".join(mappings + annotations)


def mapping(port):
    numbers, _, protocol = port.partition("/")
    host, _, container = numbers.partition(":")
    return field(1, int(protocol == "udp")) + field(2, int(container or 80)) + field(3, int(host))


def timed(at_once, work, items):
    """The results of work on each item, by so many threads; the seconds of all, and of the slowest one."""

    def one_of_them(item):
        begin = time.monotonic()
        result = work(item)
        return result, time.monotonic() - begin

    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results, seconds = zip(*pool.map(one_of_them, items))
    return results, time.monotonic() - begin, max(seconds)


def main(socket, verb, *words):
    channel = grpc.insecure_channel(f"unix://{socket}")

    def call(method, request):
        return channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(request, timeout=90)

    def run(name, ports):
        return one(call("RunPodSandbox", field(1, sandbox(name, ports))), 1).decode()

    def remove(identity):
        call("StopPodSandbox", field(1, identity))
        call("RemovePodSandbox", field(1, identity))

    if verb == "run":
        name, *ports = words
        print(run(name, ports))
    elif verb == "status":
        network = one(one(call("PodSandboxStatus", field(1, words[0])), 1), 5)
        print(one(network, 1).decode())
        for number, value in fields(network):
            if number == 2:
                print(one(value, 1).decode())
    elif verb == "stop":
        call("StopPodSandbox", field(1, words[0]))
    elif verb == "remove":
        call("RemovePodSandbox", field(1, words[0]))
    elif verb == "storm":
        count, at_once, port = map(int, words)
        started, up, slowest_up = timed(at_once, lambda at: run(f"pod{at}", [str(port + at)]), range(count))
        _, down, slowest_down = timed(at_once, remove, started)
        print(f"{up:.2f} {slowest_up:.2f} {down:.2f} {slowest_down:.2f}")
    elif verb == "ready":
        conditions = [value for number, value in fields(one(call("Status", b""), 1)) if number == 1]
        ready = {one(condition, 1): bool(one(condition, 2)) for condition in conditions}
        sys.exit(not ready[b"NetworkReady"])
    else:
        sys.exit(__doc__)


try:
    main(*sys.argv[1:])
except grpc.RpcError as error:
    sys.exit(f"cri.py: {error.details()}")
