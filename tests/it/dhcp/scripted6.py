#!/usr/bin/python3
"""A DHCPv6 server that answers as a file says: scripted6.py LINK PLAN.

PLAN is read for each message. It is a JSON object: the message's type in lower case (solicit, request, confirm, renew,
rebind, release, decline) leads to a list of answers, which are sent in this order. An answer has these keys, all of them
optional but the first:
type       message type: 2 ADVERTISE, 7 REPLY
addresses  list of [address, preferred lifetime, valid lifetime] in the IA_NA
t1, t2     the times of the IA_NA
status     the status code in the IA_NA
top        the status code of the message
without    list of "client", "server" and "ia": options that are left out
wrong      list of "xid", "client" and "iaid": values that differ from those of the client
from       the source address, which the link of the server has
server     the identifier of the server in hexadecimal
options    object of option codes and their contents in hexadecimal
cut        number of bytes of the message that are sent
"""
import json
import socket
import struct
import sys

NAMES = {1: "solicit", 3: "request", 4: "confirm", 5: "renew", 6: "rebind", 8: "release", 9: "decline"}


def options_of(data):
    found, at = {}, 0
    while at + 4 <= len(data):
        code, length = struct.unpack("!HH", data[at : at + 4])
        found[code] = data[at + 4 : at + 4 + length]
        at += 4 + length
    return found


def option(code, value):
    return struct.pack("!HH", code, len(value)) + value


def status(code):
    return option(13, struct.pack("!H", code) + b"scripted")


def answer_to(message, answer):
    asked = options_of(message[4:])
    wrong, without = answer.get("wrong", []), answer.get("without", [])

    def spoil(name, value):
        return bytes(byte ^ 0xFF for byte in value) if name in wrong else value

    body = b""
    if "client" not in without:
        body += option(1, spoil("client", asked[1]))
    if "server" not in without:
        body += option(2, bytes.fromhex(answer.get("server", "0002000009bf0a01")))
    if 3 in asked and "ia" not in without:
        times = struct.pack("!II", answer.get("t1", 1), answer.get("t2", 30))
        parts = b"".join(
            option(5, socket.inet_pton(socket.AF_INET6, address) + struct.pack("!II", preferred, valid))
            for address, preferred, valid in answer.get("addresses", [])
        )
        if "status" in answer:
            parts += status(answer["status"])
        body += option(3, spoil("iaid", asked[3][:4]) + times + parts)
    if "top" in answer:
        body += status(answer["top"])
    for code, value in answer.get("options", {}).items():
        body += option(int(code), bytes.fromhex(value))
    whole = bytes([answer["type"]]) + spoil("xid", message[1:4]) + body
    return whole[: answer.get("cut", len(whole))]


def main():
    link, plan_file = sys.argv[1:]
    server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    index = socket.if_nametoindex(link)
    group = socket.inet_pton(socket.AF_INET6, "ff02::1:2") + struct.pack("@I", index)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group)
    server.bind(("::", 547))
    print("scripted server is ready", flush=True)
    while True:
        message, client = server.recvfrom(4096)
        kind = NAMES.get(message[0], "?")
        print(kind, message[1:4].hex(), client[0], message[4:].hex(), flush=True)
        with open(plan_file, encoding="utf-8") as plan:
            answers = json.load(plan).get(kind) or []
        for answer in answers:
            source = socket.inet_pton(socket.AF_INET6, answer.get("from", "::")) + struct.pack("@I", index)
            info = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, source)
            server.sendmsg([answer_to(message, answer)], [info], 0, client)


main()
