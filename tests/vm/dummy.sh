# dummy with a kernel that has it.

config='{"cniVersion": "1.1.0", "name": "net", "type": "dummy", "mtu": 1400, "mac": "02:00:00:00:00:07",
    "dns": {"domain": "example.org"},
    "ipam": {"type": "static", "addresses": [{"address": "10.5.0.7/32"}, {"address": "fd00:5::7/128"}],
        "dns": {"domain": "ipam.example"}}}'

test_it_is_as_asked_and_its_addresses_answer() {
    container c1
    remember
    add dummy c1 "$config"
    said_contains '"domain": "example.org"'
    said_contains '"mac": "02:00:00:00:00:07"'
    same 1400 "$(at c1 cat /sys/class/net/eth0/mtu)"
    same 02:00:00:00:00:07 "$(at c1 cat /sys/class/net/eth0/address)"
    same 10.5.0.7 "$(address_of c1 eth0)"
    same fd00:5::7 "$(address_of c1 eth0 6)"
    at c1 ip link set lo up
    reaches c1 10.5.0.7
    reaches c1 fd00:5::7
    check dummy c1 "$config"
    del dummy c1 "$config"
    del dummy c1 "$config"
    not at c1 test -e /sys/class/net/eth0
    nothing_changed
}

test_check_names_what_differs() {
    container c1
    add dummy c1 "$config"
    at c1 ip link set eth0 mtu 1300
    expect_fail 999 CHECK dummy c1 "$config"
    said_contains "mtu 1300, not 1400"
    at c1 ip link set eth0 mtu 1400
    at c1 ip addr del 10.5.0.7/32 dev eth0
    expect_fail 999 CHECK dummy c1 "$config"
    said_contains "10.5.0.7/32"
    at c1 ip addr add 10.5.0.7/32 dev eth0
    check dummy c1 "$config"
    at c1 ip link set eth0 down
    expect_fail 999 CHECK dummy c1 "$config"
    said_contains "eth0 is down"
    at c1 ip link del eth0
    at c1 ip link add eth0 type veth
    at c1 ip link set eth0 address 02:00:00:00:00:07
    expect_fail 999 CHECK dummy c1 "$config"
    said_contains "kind dummy"
    # It is not the plugin's.
    del dummy c1 "$config"
    at c1 test -e /sys/class/net/eth0
}

test_del_and_gc_free_the_addresses() {
    local config='{"cniVersion": "1.1.0", "name": "net", "type": "dummy",
        "ipam": {"type": "host-local", "subnet": "10.5.0.0/24"}}'
    container c1 c2
    add dummy c1 "$config"
    add dummy c2 "$config"
    destroy c1
    del dummy c1 "$config"
    not test -e /var/lib/cni/networks/net/10.5.0.2
    gc dummy "$config" c2
    check dummy c2 "$config"
    gc dummy "$config"
    not test -e /var/lib/cni/networks/net/10.5.0.3
    status dummy "$config"
}

test_a_failing_ipam_leaves_no_interface() {
    container c1
    remember
    expect_fail 7 ADD dummy c1 '{"cniVersion": "1.1.0", "name": "net", "type": "dummy", "ipam": {"type": "none-such"}}'
    not at c1 test -e /sys/class/net/eth0
    nothing_changed
}
