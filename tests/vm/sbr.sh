# sbr on a host that has only a kernel.

first='{"cniVersion": "1.1.0", "name": "one", "type": "bridge", "bridge": "br1", "isDefaultGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}'
second='{"cniVersion": "1.1.0", "name": "two", "type": "bridge", "bridge": "br2", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]]}}'
sbr='{"cniVersion": "1.1.0", "name": "two", "type": "sbr"}'

# Lines about our addresses.
routing() {
    at c1 sh -c 'ip rule; ip -6 rule; ip route show table 100; ip -6 route show table 101' | grep -E '10[.]2|fd00:2' || true
}

sent() {
    at c1 cat "/sys/class/net/$1/statistics/tx_packets"
}

test_answers_leave_by_the_interface_of_the_question() {
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    at internet ip route add default via 192.0.2.1
    at internet ip -6 route add default via 2001:db8::1
    container c1
    add bridge c1 "$first"
    ifname=net1 add bridge c1 "$second"
    ifname=net1 add sbr c1 "$sbr"
    ifname=net1 check sbr c1 "$sbr"
    before=$(sent net1)
    for address in 10.2.0.2 fd00:2::2; do
        at internet ping -q -c 5 -W 2 "$address"
    done
    [ "$(sent net1)" -ge $((before + 10)) ] || fail "answers left by another interface"
    reaches internet 10.1.0.2
    reaches c1 192.0.2.2
    reaches c1 10.2.0.1
    not same '' "$(routing)"
    ifname=net1 del sbr c1 "$sbr"
    same '' "$(routing)"
}
