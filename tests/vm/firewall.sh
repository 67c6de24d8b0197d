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

# vlan N: a network in a VLAN of the bridge cni0, with its gateway.
vlan() {
    echo '{"cniVersion": "1.1.0", "name": "net'"$1"'", "type": "bridge", "bridge": "cni0", "vlan": '"$1"', "isDefaultGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.'"$1"'.0.0/24"}], [{"subnet": "fd00:'"$1"'::/64"}]]}}'
}

# with_vlans POLICY: a1 and a2 in VLAN 10, b1 in VLAN 20, c1 on a bridge without VLANs.
with_vlans() {
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    at internet ip route add default via 192.0.2.1
    at internet ip -6 route add default via 2001:db8::1
    container a1 a2 b1 c1
    for name in a1 a2; do add bridge $name "$(vlan 10)"; done
    add bridge b1 "$(vlan 20)"
    add bridge c1 "$(network 2)"
    reaches a1 10.20.0.2
    reaches a1 10.2.0.2
    for name in a1 a2; do add firewall $name "$(firewall 10 "$1")"; done
    add firewall b1 "$(firewall 20 "$1")"
    add firewall c1 "$(firewall 2 "$1")"
    for name in a1 a2; do check firewall $name "$(firewall 10 "$1")"; done
    for name in a1 a2; do
        reaches $name 10.10.0.1
        reaches $name fd00:10::1
        reaches $name 192.0.2.2
        reaches $name 2001:db8::2
    done
    reaches internet 10.10.0.2
    for address in 10.20.0.2 fd00:20::2 10.2.0.2 fd00:2::2; do never_reaches a1 $address; done
    for address in 10.10.0.2 fd00:10::2 10.20.0.2; do never_reaches c1 $address; done
}

test_same_bridge_keeps_vlans_apart() {
    with_vlans same-bridge
    reaches a1 10.10.0.3
    reaches a1 fd00:10::3
}

test_isolated_containers_of_a_vlan_reach_their_gateway() {
    with_vlans isolated
    never_reaches a1 10.10.0.3
    never_reaches a2 fd00:10::2
}

test_a_port_in_a_vlan_is_public() {
    local policy=${policy-same-bridge} ports
    ports=$(with '{"cniVersion": "1.1.0", "name": "net10", "type": "portmap"}' \
        '"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}')
    with_vlans "$policy"
    add portmap a1 "$ports"
    check portmap a1 "$ports"
    serve a1 80
    fetches c1 http://10.2.0.1:8080/ a1
    fetches c1 'http://[fd00:2::1]:8080/' a1
    fetches internet http://192.0.2.1:8080/ a1
    never_fetches c1 http://10.10.0.2/
    if [ "$policy" = isolated ]; then
        for address in 10.10.0.1 '[fd00:10::1]' 192.0.2.1; do never_fetches a2 "http://$address:8080/"; done
    fi
    del portmap a1 "$ports"
    never_fetches c1 http://10.2.0.1:8080/
}

test_a_port_of_an_isolated_container_in_a_vlan_is_public() {
    policy=isolated
    test_a_port_in_a_vlan_is_public
}

machine_where_bridges_call_the_firewall_the_same_holds() {
    modprobe br_netfilter
    for name in isolated_keeps_containers_of_a_bridge_apart same_bridge_keeps_vlans_apart \
        isolated_containers_of_a_vlan_reach_their_gateway a_port_of_an_isolated_container_in_a_vlan_is_public; do
        unshare -n -m sh /vm/lib.sh firewall test_$name
    done
}
