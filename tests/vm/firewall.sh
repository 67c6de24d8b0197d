# firewall on a host that has only a kernel: no other program drops packets, so the effect of ingressPolicy shows.

# network N: one of several.
network() {
    echo '{"cniVersion": "1.1.0", "name": "net'"$1"'", "type": "bridge", "bridge": "cni'"$1"'", "isDefaultGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.'"$1"'.0.0/24"}], [{"subnet": "fd00:'"$1"'::/64"}]]}}'
}

# firewall N POLICY
firewall() {
    echo '{"cniVersion": "1.1.0", "name": "net'"$1"'", "type": "firewall", "ingressPolicy": "'"$2"'"}'
}

test_same_bridge_keeps_bridges_apart() {
    outside internet 192.0.2.1/24 192.0.2.2/24
    at internet ip route add default via 192.0.2.1
    container a1 a2 b1
    for name in a1 a2; do add bridge $name "$(network 1)"; done
    add bridge b1 "$(network 2)"
    reaches a1 10.2.0.2
    reaches b1 fd00:1::2
    for name in a1 a2; do add firewall $name "$(firewall 1 same-bridge)"; done
    add firewall b1 "$(firewall 2 same-bridge)"
    never_reaches a1 10.2.0.2
    never_reaches b1 fd00:1::2
    reaches a1 10.1.0.3
    reaches a1 fd00:1::3
    reaches b1 192.0.2.2
    check firewall a1 "$(firewall 1 same-bridge)"
    del firewall b1 "$(firewall 2 same-bridge)"
    gc firewall "$(firewall 1 same-bridge)"
    reaches a1 10.2.0.2
}

test_isolated_keeps_containers_of_a_bridge_apart() {
    container c1 c2 c3
    for name in c1 c2 c3; do add bridge $name "$(network 1)"; done
    reaches c1 10.1.0.3
    for name in c1 c2 c3; do add firewall $name "$(firewall 1 isolated)"; done
    never_reaches c1 10.1.0.3
    never_reaches c2 fd00:1::4
    reaches c1 10.1.0.1
    check firewall c1 "$(firewall 1 isolated)"
}

machine_where_bridges_call_the_firewall_the_same_holds() {
    modprobe br_netfilter
    unshare -n -m sh /vm/lib.sh firewall test_isolated_keeps_containers_of_a_bridge_apart
}
